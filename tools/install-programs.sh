#!/bin/sh
# Install the programs of Debian and Ubuntu that the tests need and that are missing:
#     sh tools/install-programs.sh
#
# Without root, or without a way to the packages, it says what is missing and ends well:
# a test that needs a program names it, and fails where CI=true.
set -eu

PATH="$PATH:/usr/sbin:/sbin"
MISSING=""
for pair in \
  chromedriver=chromium-driver chromium=chromium curl=curl envsubst=gettext-base \
  h2load=nghttp2-client nghttp=nghttp2-client nginx=nginx openssl=openssl \
  mosquitto=mosquitto prometheus=prometheus promtool=prometheus redis-server=redis-server valkey-server=valkey-server \
  cc="gcc libc6-dev" ; do
  command -v "${pair%%=*}" >/dev/null || MISSING="$MISSING ${pair#*=}"
done
[ -e /usr/lib/nginx/modules/ngx_http_js_module.so ] ||
  MISSING="$MISSING libnginx-mod-http-js"
[ -n "$MISSING" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "install-programs: missing, and not root on Debian or Ubuntu:$MISSING" >&2
  exit 0
fi

# The packages start their daemons, which nobody wants here; this file says no.
POLICY=/usr/sbin/policy-rc.d
if [ ! -e "$POLICY" ]; then
  trap 'rm -f "$POLICY"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
fi

LOG=$(mktemp)
export DEBIAN_FRONTEND=noninteractive

is_offered() {
  [ -n "$(apt-cache madison "$1")" ]
}

# Debian 12 has valkey-server in its backports, which are another suite of its archive.
# Packages of that suite are installed only where no other suite has them.
add_backports() {
  apt-get indextargets --format '$(LABEL) $(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $3 !~ /-/ { print "deb", $2, $3 "-backports main"; exit }' \
      >/etc/apt/sources.list.d/backports-of-tollgate.list
  apt-get update -qq -o Acquire::Retries=3
}

{
  apt-get update -qq -o Acquire::Retries=3
  is_offered valkey-server || add_backports
} >"$LOG" 2>&1 </dev/null || true
# One name that apt does not know would keep it from installing the others.
case "$MISSING " in *" valkey-server "*)
  is_offered valkey-server || {
    echo "install-programs: this system has no package valkey-server" >&2
    MISSING=$(echo "$MISSING" | sed 's/ valkey-server//')
  } ;;
esac

# shellcheck disable=SC2086  # several names
if apt-get install -y -qq --no-install-recommends -o Acquire::Retries=3 $MISSING \
  >>"$LOG" 2>&1 </dev/null; then
  echo "install-programs: installed$MISSING"
else
  tail -n 5 "$LOG" >&2
  echo "install-programs: apt-get did not install$MISSING" >&2
fi
rm -f "$LOG"
