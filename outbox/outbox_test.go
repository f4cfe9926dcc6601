package outbox_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

func TestAppend(t *testing.T) {
	t.Parallel()

	t.Run("a message arrives as it was queued", func(t *testing.T) {
		db := fresh(t)
		sent := outbox.Message{
			Topic: topic, ID: "7b0c8d4e-0000-5000-8000-000000000001", Type: "letter", OrderingKey: "naïve 🔑",
			Payload: []byte("\x00\xff not text"), Metadata: map[string]string{outbox.MetadataCorrelationID: "req_1", "": ""},
		}
		post(t, db, sent)
		m := read(t, db, "g").next(t)
		want := message.Metadata{"type": "letter", "ordering_key": "naïve 🔑", "correlation_id": "req_1", "": ""}
		if diff := cmp.Diff(want, m.Metadata); diff != "" || m.UUID != sent.ID || string(m.Payload) != string(sent.Payload) {
			t.Errorf("message %s %q, metadata (-want +got):\n%s", m.UUID, m.Payload, diff)
		}
	})

	t.Run("a message may be empty", func(t *testing.T) {
		db := fresh(t)
		post(t, db, outbox.Message{Topic: topic, ID: "m1"})
		if m := read(t, db, "g").next(t); m.UUID != "m1" || len(m.Payload) != 0 {
			t.Errorf("message %s %q", m.UUID, m.Payload)
		}
	})

	t.Run("nothing is sent before the commit, and nothing without it", func(t *testing.T) {
		db := fresh(t)
		b := letters(t, "m1")
		b.Queue(`insert into merchants (merchant_id) values ('Not A Word')`)
		if err := db.Commit(t.Context(), b); groupcommit.Constraint(err) != "merchants_merchant_id_check" {
			t.Fatalf("the error is %v", err)
		}
		publish(t, db, "m2")
		read(t, db, "g").wantNext(t, "m2")
	})

	t.Run("an id that is none takes the batch with it", func(t *testing.T) {
		db := fresh(t)
		for _, id := range []string{"", strings.Repeat("x", 37)} {
			if err := db.Commit(t.Context(), letters(t, "m1", id)); groupcommit.Constraint(err) != "outbox_message_id_check" {
				t.Errorf("%q: %v", id, err)
			}
		}
		publish(t, db, strings.Repeat("é", 36))
		read(t, db, "g").wantNext(t, strings.Repeat("é", 36))
	})

	t.Run("an ordering key that no receiver could index is refused", func(t *testing.T) {
		t.Parallel()
		b := &pgx.Batch{}
		m := outbox.Message{Topic: topic, ID: "m1", OrderingKey: strings.Repeat("é", 127) + "x"}
		if err := outbox.Append(b, m); err != nil || b.Len() != 1 {
			t.Errorf("255 bytes: %d statements, %v", b.Len(), err)
		}
		m.OrderingKey += "x"
		err := outbox.Append(b, m)
		if err == nil || err.Error() != "append message m1: the ordering key has more than 255 bytes" || b.Len() != 1 {
			t.Errorf("256 bytes: %d statements, %v", b.Len(), err)
		}
	})

	t.Run("metadata that is no text takes the batch with it", func(t *testing.T) {
		db := fresh(t)
		b := letters(t, "m1")
		err := outbox.Append(b, outbox.Message{Topic: topic, ID: "m2", Metadata: map[string]string{"k": "\x00"}})
		must(t, err)
		if err := db.Commit(t.Context(), b); err == nil {
			t.Error("it was stored")
		}
		publish(t, db, "m3")
		read(t, db, "g").wantNext(t, "m3")
	})
}

func TestMetadataThatAppendDidNotWrite_keepsItsTextAndBlocksNothing(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for id, metadata := range map[string]string{
		"number": `{"type": 1}`, "nested": `{"type": {"a": []}}`, "null": `{"type": null}`, "empty": `{}`,
		"letter": `{"a": 1, "type": "letter", "m": {"type": "parcel"}, "ordering_key": "letter", "z": null}`,
	} {
		write(t, db, `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, '', $3)`, topic, id, json.RawMessage(metadata))
	}
	publish(t, db, "last")
	r := read(t, db, "g")
	for range 5 {
		m := r.next(t)
		want := map[bool]string{true: "letter"}[m.UUID == "letter"]
		if got := m.Metadata; got.Get(outbox.MetadataType) != want || got.Get(outbox.MetadataOrderingKey) != want || got.Get("a") != "" {
			t.Errorf("%s has the metadata %v", m.UUID, got)
		}
		r.ack()
	}
	r.wantNext(t, "last")
}

// FuzzMetadata: whatever is queued as metadata, it is refused or reaches the
// reader.
func FuzzMetadata(f *testing.F) {
	f.Add("type", "letter", "key")
	f.Add("type", "parcel", "key")
	f.Add("", "\u2028", "\U0010ffff")
	f.Add("correlation_id", "\xff\xfe", `","type":"x`)
	f.Add("", "", strings.Repeat("k", 256))
	f.Fuzz(func(t *testing.T, name, value, key string) {
		b := &pgx.Batch{}
		err := outbox.Append(b, outbox.Message{Topic: topic, ID: "m", Type: "letter", OrderingKey: key, Metadata: map[string]string{name: value}})
		if (err != nil) != (len(key) > outbox.MaxOrderingKey) {
			t.Fatalf("a key of %d bytes: %v", len(key), err)
		}
		if err != nil {
			return
		}
		encoded, ok := b.QueuedQueries[0].Arguments[3].([]byte)
		if !ok {
			t.Fatalf("the metadata is a %T", b.QueuedQueries[0].Arguments[3])
		}
		var got map[string]string
		if err := json.Unmarshal(encoded, &got); err != nil {
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
