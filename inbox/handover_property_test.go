package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// script is what a handler does with the messages of a history, by what their
// payloads say, and what it has seen.
type script struct {
	mu      sync.Mutex
	running map[string]bool // by key
	began   []string        // those that came to their end, in the order in which they began
	wrong   []string
}

func (s *script) handle(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
	s.mu.Lock()
	if s.running[d.OrderingKey] {
		s.wrong = append(s.wrong, "two messages of one key run: "+d.ID)
	}
	s.running[d.OrderingKey] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, d.OrderingKey)
	}()
	switch {
	case string(d.Payload) == "fails" && d.Attempt == 1:
		return inbox.Complete, errors.New("planted")
	case string(d.Payload) == "waits" && d.Waits == 0:
		return inbox.Complete, &inbox.WaitError{Err: errors.New("planted")}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = append(s.began, d.ID)
	return inbox.Complete, nil
}

// TestTakenOnReceiptIsLikeClaimed: any history of pages and of messages that come by
// another way leaves, handed over on receipt, what it leaves where everything is
// claimed: each message done, once, in the order of its key, one at a time.
func TestTakenOnReceiptIsLikeClaimed(t *testing.T) {
	pgtest.Long(t, "it does the same in many ways")
	t.Parallel()
	db := pgtest.Reused(t)
	scripts := map[string]*script{}
	processors := map[string]*inbox.Processor{}
	for _, receiver := range []string{"taken", "claimed"} {
		scripts[receiver] = &script{running: map[string]bool{}}
		p := processor(db, scripts[receiver].handle)
		p.Receiver, p.Concurrency = receiver, 4
		p.Policy.BackoffBase, p.Policy.BackoffCap = time.Millisecond, 5*time.Millisecond
		processors[receiver] = p
	}
	hand(t, db, inbox.NewHandover(processors["taken"]), nil, nil, "taken", "claimed")
	for _, p := range processors {
		start(t, p)
	}
	draws, messages := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		if draws++; draws > 15 {
			return // each takes some commits, and some polls of the subscriber
		}
		for range rapid.IntRange(1, 6).Draw(r, "steps") {
			texts := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) string {
				messages++
				return fmt.Sprintf("%d-%d=%s@%d-%s", draws, rapid.IntRange(max(1, messages-3), messages).Draw(r, "id"),
					rapid.SampledFrom([]string{"passes", "passes", "fails", "waits"}).Draw(r, "payload"),
					draws, rapid.SampledFrom([]string{"k", "l", "m"}).Draw(r, "key"))
			}), 1, 6).Draw(r, "messages")
			if rapid.Bool().Draw(r, "by a page") {
				page(r, db, of(texts...)...)
				if rapid.Bool().Draw(r, "that is waited for") {
					awaitReceived(t, db)
				}
				continue
			}
			awaitReceived(t, db) // else which of them is older would be left to chance
			b := &pgx.Batch{}
			for _, m := range of(texts...) {
				for receiver := range processors {
					its := inbox.Message{ID: m.ID, Type: m.Type, OrderingKey: m.OrderingKey, Payload: m.Payload}
					if err := inbox.Accept(b, receiver, its); err != nil {
						r.Fatal(err)
					}
				}
			}
			if err := db.Commit(r.Context(), b); err != nil {
				r.Fatal(err)
			}
		}
		awaitReceived(t, db)
		await.Row(t, db, `select coalesce(bool_and(status = 'done' and holder = 'test'), true) from inbox`)
	})
	for receiver, s := range scripts {
		for _, wrong := range s.wrong {
			t.Errorf("%s: %s", receiver, wrong)
		}
		rows, err := db.Query(t.Context(), `select message_id, ordering_key from inbox where receiver = $1 order by id`, receiver)
		if err != nil {
			t.Fatal(err)
		}
		key := map[string]string{}
		want, got := map[string][]string{}, map[string][]string{}
		var id, of string
		if _, err := pgx.ForEachRow(rows, []any{&id, &of}, func() error {
			key[id], want[of] = of, append(want[of], id)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, id := range s.began {
			got[key[id]] = append(got[key[id]], id)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: messages of each key (-received +handled):\n%s", receiver, diff)
		}
	}
	if diff := cmp.Diff(keptBy(t, db, "claimed"), keptBy(t, db, "taken"), cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "Due"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("the inbox (-claimed +taken on receipt):\n%s", diff)
	}
}
