"""The rendered Helm chart."""
