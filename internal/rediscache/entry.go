package rediscache

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/payonce/payonce/idempotency"
)

// entry is what is kept of a record: all that a replay needs. A new field needs
// a new format in read, so that no old entry is replayed without it.
type entry struct {
	Fingerprint []byte    `json:"fingerprint"`
	StatusCode  int       `json:"status_code"`
	ContentType string    `json:"content_type"`
	Location    string    `json:"location,omitempty"`
	Body        []byte    `json:"body"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// prefix begins the name of every entry; there is none of this name alone.
const prefix = "payonce:answer:"

// name is the name of a key's entry. It is made with the secret, so that Redis
// shows no key, nor lets anybody try out what a key might have been.
func (r *reading) name(key idempotency.Key) string {
	name := sum(r.key, "name", key.Scope, key.Operation, key.Value)
	return prefix + base64.RawURLEncoding.EncodeToString(name)
}

// seal is the value of an entry: an HMAC, then what it vouches for.
func (r *reading) seal(key idempotency.Key, record idempotency.Record) ([]byte, error) {
	text, err := json.Marshal(entry{
		Fingerprint: record.Fingerprint,
		StatusCode:  record.StatusCode,
		ContentType: record.ContentType,
		Location:    record.Location,
		Body:        record.Body,
		ExpiresAt:   record.ExpiresAt.UTC(),
	})
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return append(r.vouch(key, text), text...), nil
}

// open is the record in a value. It is false for every value that was not sealed
// for this key in this state of the database.
func (r *reading) open(key idempotency.Key, value []byte) (idempotency.Record, bool) {
	if len(value) < sha256.Size {
		return idempotency.Record{}, false
	}
	seal, text := value[:sha256.Size], value[sha256.Size:]
	if !hmac.Equal(seal, r.vouch(key, text)) {
		return idempotency.Record{}, false
	}
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return idempotency.Record{}, false
	}
	return idempotency.Record{
		Answer: idempotency.Answer{
			StatusCode: e.StatusCode, ContentType: e.ContentType, Location: e.Location, Body: e.Body,
		},
		Fingerprint: e.Fingerprint,
		ExpiresAt:   e.ExpiresAt,
	}, true
}

func (r *reading) vouch(key idempotency.Key, text []byte) []byte {
	return sum(r.key, "answer", key.Scope, key.Operation, key.Value, string(text))
}
