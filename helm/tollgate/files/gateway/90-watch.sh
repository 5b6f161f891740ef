#!/bin/sh
# In the official image's /docker-entrypoint.d: nginx reads its files anew when a
# mounted secret changed, or when the name of the servers means other addresses.
# A configuration that nginx refuses changes nothing; it says why and goes on.
set -eu

CONFIGURATION=${GATEWAY_CONFIGURATION:-/tmp/nginx/nginx.conf}
EVERY_S=${GATEWAY_WATCH_S:-10}

look() {
  cat "$GATEWAY_TLS_CERT" "$GATEWAY_TLS_KEY" "$GATEWAY_CLIENT_CA" "$GATEWAY_KEYS" \
    2>/dev/null | cksum
  { getent ahosts "${GATEWAY_UPSTREAM%:*}" || true; } | awk '{ print $1 }' | sort -u
}

watch() {
  seen=$(look)
  while sleep "$EVERY_S"; do
    now=$(look)
    [ "$now" != "$seen" ] || continue
    seen=$now
    if nginx -t -q -c "$CONFIGURATION" -e stderr; then
      echo "gateway: files or servers changed; read anew"
      nginx -s reload -c "$CONFIGURATION" -e stderr || true
    fi
  done
}

watch &
