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

// entry is what a replay needs of a record. A new field needs
// another format in reader.read, so that no old entry is replayed without it.
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

// name is the name of a key's entry. It is an HMAC, so that a reader of Redis can neither
// see a key nor test a guess.
func (s *state) name(key idempotency.Key) string {
	name := sum(s.key, "name", key.Scope, key.Operation, key.Value)
	return prefix + base64.RawURLEncoding.EncodeToString(name)
}

// seal is the value of an entry: an HMAC, then the text that it authenticates.
func (s *state) seal(key idempotency.Key, record idempotency.Record) ([]byte, error) {
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
	return append(s.hmac(key, text), text...), nil
}

// open is the record in a value. It is false for a value that was not sealed for this
// key in this state of the database.
func (s *state) open(key idempotency.Key, value []byte) (idempotency.Record, bool) {
	if len(value) < sha256.Size {
		return idempotency.Record{}, false
	}
	seal, text := value[:sha256.Size], value[sha256.Size:]
	if !hmac.Equal(seal, s.hmac(key, text)) {
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

func (s *state) hmac(key idempotency.Key, text []byte) []byte {
	return sum(s.key, "answer", key.Scope, key.Operation, key.Value, string(text))
}
