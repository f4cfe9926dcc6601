package outbox_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/outbox"
)

// FuzzMetadata: metadata is refused with its ordering key, or keeps its meaning, and never changes
// the type.
func FuzzMetadata(f *testing.F) {
	f.Add("type", "letter", "key")
	f.Add("", "\u2028", "\U0010ffff")
	f.Add("correlation_id", "\xff\xfe", `","type":"x`)
	f.Add("", "", strings.Repeat("é", 127)+"x")
	f.Add("", "", strings.Repeat("k", 256))
	f.Fuzz(func(t *testing.T, name, value, key string) {
		b := &pgx.Batch{}
		err := outbox.Append(b, outbox.Message{Topic: topic, ID: "m", Type: "letter", OrderingKey: key, Metadata: map[string]string{name: value}})
		if refused := len(key) > 255 || !utf8.ValidString(key) || strings.Contains(key, "\x00"); (err != nil) != refused {
			t.Fatalf("the key %q: %v", key, err)
		}
		if err != nil {
			return
		}
		encoded, _ := b.QueuedQueries[0].Arguments[3].(string)
		var got map[string]string
		if err := json.Unmarshal([]byte(encoded), &got); err != nil {
			t.Fatalf("%q is no metadata: %v", encoded, err)
		}
		if got[outbox.MetadataType] != "letter" {
			t.Errorf("the type became %q", got[outbox.MetadataType])
		}
		ours := name == outbox.MetadataType || name == outbox.MetadataOrderingKey
		if !ours && utf8.ValidString(name) && utf8.ValidString(value) && got[name] != value {
			t.Errorf("%q became %q", value, got[name])
		}
	})
}
