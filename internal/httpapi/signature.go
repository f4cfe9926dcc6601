package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stripe's scheme, as published: Stripe-Signature holds t=… and one v1=… per secret of the
// endpoint, v1 being HMAC-SHA256 over "t.body" under the whole text of the secret.
const (
	headerSignature    = "Stripe-Signature"
	signatureTolerance = 5 * time.Minute // both ways: a signature is neither eternal nor made ahead
)

// isSigned reports whether the header holds a signature of the body by one of the secrets.
// It refuses what Stripe's own library refuses, and a signature from the future, a repeated
// header, and any header where no secret is set. Of several times the last one is signed. A
// v1 that is no signature is ignored, and so are other schemes.
func isSigned(headers []string, body []byte, secrets []string, now time.Time) bool {
	if len(headers) != 1 {
		return false
	}
	var signed int64
	var signatures [][]byte
	for part := range strings.SplitSeq(headers[0], ",") {
		name, value, pair := strings.Cut(part, "=")
		if !pair || strings.Contains(value, "=") {
			return false
		}
		var err error
		switch name {
		case "t":
			if signed, err = strconv.ParseInt(value, 10, 64); err != nil {
				return false
			}
		case "v1":
			if s, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, s)
			}
		}
	}
	if age := now.Sub(time.Unix(signed, 0)); age > signatureTolerance || age < -signatureTolerance {
		return false
	}
	return slices.ContainsFunc(secrets, func(secret string) bool {
		want := signature(secret, signed, body)
		return secret != "" && slices.ContainsFunc(signatures, func(s []byte) bool { return hmac.Equal(want, s) })
	})
}

func signature(secret string, at int64, body []byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(strconv.AppendInt(nil, at, 10))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return mac.Sum(nil)
}
