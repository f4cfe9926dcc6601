package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	t.Run("a message without a topic or an id is refused", func(t *testing.T) {
		db := fresh(t)
		for _, m := range []outbox.Message{{Topic: topic}, {Topic: topic, ID: strings.Repeat("x", 37)}, {ID: "m1"}} {
			b := &pgx.Batch{}
			if err := outbox.Append(b, m); err == nil || b.Len() != 0 {
				t.Errorf("%+v: %v, %d queued", m, err, b.Len())
			}
		}
		publish(t, db, strings.Repeat("é", 36))
		read(t, db, "g").wantNext(t, strings.Repeat("é", 36))
	})

	t.Run("a payload of 10 MB arrives whole, and one that no page could hold is refused", func(t *testing.T) {
		db := fresh(t)
		large := bytes.Repeat([]byte("0123456789"), 1<<20)
		post(t, db, outbox.Message{Topic: topic, ID: "m1", Payload: large})
		if m := read(t, db, "g").next(t); m.UUID != "m1" || !bytes.Equal(m.Payload, large) {
			t.Errorf("message %s with %d bytes", m.UUID, len(m.Payload))
		}
		b := &pgx.Batch{}
		err := outbox.Append(b, outbox.Message{Topic: topic, ID: "m2", Payload: make([]byte, outbox.MaxPayload+1)})
		if err == nil || err.Error() != "append message m2: the payload has more than 67108864 bytes" || b.Len() != 0 {
			t.Errorf("%d statements, %v", b.Len(), err)
		}
	})

	t.Run("metadata that is no text takes the batch with it", func(t *testing.T) {
		db := fresh(t)
		b := letters(t, "m1")
		err := outbox.Append(b, outbox.Message{Topic: topic, ID: "m2", Metadata: map[string]string{"k": "\x00"}})
		testdb.Must(t, err)
		if err := db.Commit(t.Context(), b); err == nil {
			t.Error("it was stored")
		}
		publish(t, db, "m3")
		read(t, db, "g").wantNext(t, "m3")
	})
}

func TestSend(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	planted := errors.New("planted")
	send := func(after error, ids ...string) error {
		return pgx.BeginFunc(t.Context(), db.Pool(), func(tx pgx.Tx) error {
			var messages []outbox.Message
			for _, id := range ids {
				messages = append(messages, outbox.Message{Topic: topic, ID: id, Payload: []byte(id)})
			}
			if err := outbox.Send(t.Context(), tx, messages...); err != nil {
				return err
			}
			return after
		})
	}
	if err := send(planted, "m1"); !errors.Is(err, planted) {
		t.Errorf("the transaction is rolled back: %v", err)
	}
	if err := send(nil, "m2", strings.Repeat("x", 37)); err == nil {
		t.Errorf("an id that is too long: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pgx.BeginFunc(t.Context(), db.Pool(), func(tx pgx.Tx) error {
		return outbox.Send(ctx, tx, outbox.Message{Topic: topic, ID: "m4"})
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	testdb.Must(t, send(nil, "m5", "m6"))
	testdb.Must(t, send(nil))
	r := read(t, db, "g")
	r.wantNext(t, "m5", "m6")
	r.wantNone(t)
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
	f.Add("", "", strings.Repeat("é", 127)+"x")
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
