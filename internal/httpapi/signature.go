package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// Stripe's scheme, as published: Stripe-Signature holds t=… and one v1=… per
// secret of the endpoint, v1 being HMAC-SHA256 over "t.body" under the whole
// text of the secret.
const (
	headerSignature    = "Stripe-Signature"
	signatureTime      = "t"
	signatureV1        = "v1"
	signatureTolerance = 5 * time.Minute // both ways: a signature is not good for ever, nor made ahead
)

// isSigned tells whether the header holds a signature of the body by one of the
// secrets. Every header that Stripe's own library refuses is refused; so is one
// from the future, a repeated one, and any where no secret is set.
func isSigned(headers []string, body []byte, secrets []string, now time.Time) bool {
	if len(headers) != 1 {
		return false
	}
	signed, ok := signedAt(headers[0])
	if !ok {
		return false
	}
	if age := now.Sub(signed); age > signatureTolerance || age < -signatureTolerance {
		return false
	}
	for _, secret := range secrets {
		if secret != "" && holdsSignature(headers[0], signature(secret, signed, body)) {
			return true
		}
	}
	return false
}

// signedAt reads the time of a header, every part of which has a name and a
// value. Of several times the last one counts: it is the one that is signed.
func signedAt(header string) (at time.Time, ok bool) {
	for part := range strings.SplitSeq(header, ",") {
		name, value, pair := strings.Cut(part, "=")
		if !pair || strings.Contains(value, "=") {
			return at, false
		}
		if name != signatureTime {
			continue
		}
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return at, false
		}
		at, ok = time.Unix(seconds, 0), true
	}
	return at, ok
}

func signature(secret string, at time.Time, body []byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(strconv.AppendInt(nil, at.Unix(), 10))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return mac.Sum(nil)
}

// holdsSignature compares each v1 in constant time. A v1 that is no signature is
// passed over, and so are other schemes.
func holdsSignature(header string, want []byte) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(part, "=")
		if name != signatureV1 || len(value) != hex.EncodedLen(sha256.Size) {
			continue
		}
		got, err := hex.DecodeString(value)
		if err == nil && hmac.Equal(want, got) {
			return true
		}
	}
	return false
}
