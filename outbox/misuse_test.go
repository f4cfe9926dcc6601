package outbox_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// A group that cannot know how far it has read would otherwise be as silent as one that has
// read all.
func TestPosition_ofAnUnknownGroupIsAnError(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][2]string{
		"its offset is deleted":   {`delete from outbox_offsets`, `insert into outbox_offsets (topic, consumer_group, transaction_id, "offset") values ('letters', 'g', '0', 0)`},
		"the tables are restored": {`update numbering_mark set written_in = '7'`, `update numbering_mark set written_in = pg_current_xact_id()`},
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t)
			publish(t, db, "m0001")
			to, log := &broker{}, &await.Log{}
			forward(t, db.Pool(), to, outbox.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
			to.await(t, 1)
			awaitForwarded(t, db)
			write(t, db, change[0])
			publish(t, db, "m0002")
			await.True(t, "it says so", func() bool {
				return strings.Contains(log.String(), "has no row in outbox_offsets, or the tables were restored")
			})
			if ids, _ := to.firsts(); !slices.Equal(ids, []string{"m0001"}) {
				t.Errorf("it publishes %v", ids)
			}
			write(t, db, change[1])
			to.await(t, 2)
		})
	}
}

func TestSubscriber_withoutFreeSlotsAsksAgainAfterAPoll(t *testing.T) {
	testdb.Long(t, "it polls for a while")
	t.Parallel()
	asked := make(chan time.Time)
	readWhen(t, testdb.Open(t), "g", outbox.Options{Listening: listening, Capacity: func(ctx context.Context) int {
		select {
		case asked <- time.Now():
		case <-ctx.Done():
		}
		return 0
	}})
	first, second := await.Receive(t, "it asks for capacity", asked), await.Receive(t, "it asks again", asked)
	if paused := second.Sub(first); paused < late {
		t.Errorf("it asks again after %v", paused)
	}
}

// The context ends in the middle of a poll, many times.
func TestSubscriber_logsNoErrorOfItsEnd(t *testing.T) {
	t.Parallel()
	db, log := testdb.Open(t), &await.Log{}
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		subscriber := outbox.NewSubscriber(db.Pool(), "g", outbox.Options{Log: slog.New(slog.NewTextHandler(log, nil)), Listening: func() bool {
			time.AfterFunc(50*time.Millisecond, cancel) // with the next poll
			return false
		}})
		pages, err := subscriber.Subscribe(ctx, topic)
		testdb.Must(t, err)
		await.Receive(t, "the end", pages)
		testdb.Must(t, subscriber.Close())
	}
	if log.String() != "" {
		t.Errorf("it logs %s", log)
	}
}
