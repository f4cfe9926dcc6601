package demo

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
)

// drawSeed is small enough to be typed.
func drawSeed() uint64 {
	return 1 + uint64(binary.BigEndian.Uint32(random(4)))
}

// newRunName is made of letters alone: digits could look like the number of a
// card, which the service refuses to take.
func newRunName() string {
	name := random(8)
	for i, b := range name {
		name[i] = 'a' + b%26
	}
	return string(name)
}

func newAPIKey() string { return "sk_test_" + hex.EncodeToString(random(32)) }

// newWebhookSecret is a secret as Standard Webhooks writes them.
func newWebhookSecret() string { return "whsec_" + base64.StdEncoding.EncodeToString(random(32)) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
