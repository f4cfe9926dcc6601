package idempotency

import "encoding/hex"

// Content makes a key of what a message says: SHA-256 over its canonical JSON and its
// source. Order of members, white space and spelling do not matter. It also returns
// the canonical JSON. ErrNotJSON for what is no JSON.
//
// Where the key becomes the id of a message, hand the canonical JSON over as its
// payload. The inbox compares payloads byte for byte, and would quarantine the same
// message in another spelling.
//
// It is the last resort, for senders that give no key. Two messages that say the
// same are one: two orders of the same article on purpose become one order. And
// a member that changes with each sending, such as a time, makes them two.
func Content(source string, payload []byte) (key string, canonical []byte, err error) {
	canonical, err = Canonical(payload)
	if err != nil {
		return "", nil, err
	}
	sum := Fingerprint([]byte("content.v1"), []byte(source), canonical)
	return "content.v1:" + hex.EncodeToString(sum), canonical, nil
}

// ContentKey is the key of Content alone, for what is not kept under it.
func ContentKey(source string, payload []byte) (string, error) {
	key, _, err := Content(source, payload)
	return key, err
}
