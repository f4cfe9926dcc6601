package outbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// A message is the same on both sides in each mode of pgx, alone, in a group commit, and by Send.
func TestMessage_arrivesAsItWasInEachModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range testdb.Modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			pool := testdb.PoolIn(t, url, mode)
			sent := func(id string) outbox.Message {
				return outbox.Message{
					Topic: topic, ID: id, Type: "letter", OrderingKey: "naïve 🔑", Partition: `a'b\c`, Payload: []byte("\x00\xff\\x not text"),
					Metadata: map[string]string{
						outbox.MetadataCorrelationID: "req_1", "": "", `"`: "\u2028", `","type":"x`: "\xff\U0010ffff", outbox.MetadataType: "parcel",
					},
				}
			}
			c := groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(outbox.Writes()...)})
			var work errgroup.Group
			for n := range 8 {
				work.Go(func() error {
					b := &pgx.Batch{}
					return errors.Join(outbox.Append(b, sent(fmt.Sprint("é", n))), c.Commit(t.Context(), b))
				})
			}
			work.Go(func() error {
				return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Send(t.Context(), tx, sent("é8"), sent("é9")) })
			})
			testdb.Must(t, work.Wait())
			want := message.Metadata{
				"type": "letter", "ordering_key": "naïve 🔑", "partition_key": `a'b\c`, "correlation_id": "req_1", "": "", `"`: "\u2028",
				`","type":"x`: "\ufffd\U0010ffff", // what is no text is replaced
			}
			seen := map[string]bool{}
			for _, m := range read(t, pool, options{}).next(t, 10) {
				if diff := cmp.Diff(want, m.Metadata); diff != "" || string(m.Payload) != string(sent("").Payload) {
					t.Errorf("message %s %q, metadata (-want +got):\n%s", m.UUID, m.Payload, diff)
				}
				seen[m.UUID] = true
				m.Ack()
			}
			if len(seen) != 10 {
				t.Errorf("the messages are %v", seen)
			}
			wantEmpty(t, testdb.Connect(t, url))
		})
	}
}

func TestAppend_refusesWhatNoOutboxHolds(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	for what, m := range map[string]outbox.Message{
		"no topic": {ID: "m"}, "no id": {Topic: topic}, "a long id": {Topic: topic, ID: x(256)},
		"a long key": {Topic: topic, ID: "m", OrderingKey: x(256)}, "a long payload": {Topic: topic, ID: "m", Payload: make([]byte, outbox.MaxPayload+1)},
		"a long type": {Topic: topic, ID: "m", Type: x(256)}, "a long partition": {Topic: topic, ID: "m", Partition: x(256)},
		"an id of 256 bytes": {Topic: topic, ID: strings.Repeat("é", 128)}, "a key that is no text": {Topic: topic, ID: "m", OrderingKey: "\xff"},
		"an id with NUL": {Topic: topic, ID: "m\x00"},
	} {
		b := &pgx.Batch{}
		if err := outbox.Append(b, m); !errors.Is(err, outbox.ErrInvalid) || b.Len() != 0 {
			t.Errorf("%s: %v, %d queued", what, err, b.Len())
		}
		var unused pgx.Tx // nothing is sent before all can be held
		if err := outbox.Send(t.Context(), unused, outbox.Message{Topic: topic, ID: "m"}, m); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("%s, sent behind another message: %v", what, err)
		}
	}
	longest, large := strings.Repeat("é", 127)+"x", bytes.Repeat([]byte("0123456789"), 1<<20)
	b := &pgx.Batch{}
	testdb.Must(t, outbox.Append(b, outbox.Message{Topic: topic, ID: longest, OrderingKey: x(255), Payload: large}))
	large[0] = 'x' // the batch has a copy
	testdb.Must(t, outbox.Append(b, outbox.Message{Topic: topic, ID: "empty"}))
	testdb.Must(t, outbox.Append(&pgx.Batch{}, outbox.Message{Topic: topic, ID: "m", Payload: make([]byte, outbox.MaxPayload)}))
	testdb.Must(t, db.Commit(t.Context(), b))
	page := read(t, db.Pool(), options{}).next(t, 1)
	if m := page[0]; m.UUID != longest || len(m.Payload) != len(large) || m.Payload[0] != '0' {
		t.Errorf("message %s with %d bytes", m.UUID, len(m.Payload))
	}
}
