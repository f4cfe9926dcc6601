package idempotency

import "encoding/hex"

// ContentKey makes a key of what a message says: SHA-256 over its canonical JSON
// and its source. Order of members, white space and spelling do not matter.
// ErrNotJSON for what is no JSON.
//
// It is the last resort, for senders that give no key. Two messages that say the
// same are one: two orders of the same article on purpose become one order. And
// a member that changes with each sending, such as a time, makes them two.
func ContentKey(source string, payload []byte) (string, error) {
	canonical, err := Canonical(payload)
	if err != nil {
		return "", err
	}
	sum := Fingerprint([]byte("content.v1"), []byte(source), canonical)
	return "content.v1:" + hex.EncodeToString(sum), nil
}
