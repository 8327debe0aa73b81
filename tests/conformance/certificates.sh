#!/bin/sh
# An authority and the certificates that it signed, for one day: ca.pem, server.pem and .key (for NAME and 127.0.0.1),
# client.pem and .key. Usage: certificates.sh FOLDER [NAME]
set -eu
cd "$1"
name=${2:-localhost}

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1" 2>/dev/null; }

new_key ca.key
openssl req -x509 -new -key ca.key -days 1 -subj "/CN=test authority" -out ca.pem \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign 2>/dev/null
for who in server client; do
    new_key $who.key
    openssl req -new -key $who.key -subj "/CN=test $who" -out $who.csr 2>/dev/null
    printf 'subjectAltName=DNS:%s,IP:127.0.0.1\nextendedKeyUsage=%sAuth\n' "$name" $who >$who.ext
    openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile $who.ext -out $who.pem \
        2>/dev/null
done
