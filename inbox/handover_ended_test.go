package inbox_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestPageThatEndsOtherwise: what was told of a page is not taken for what became of
// its transaction, nor the number of a row for the row.
func TestPageThatEndsOtherwise(t *testing.T) {
	t.Parallel()

	t.Run("a commit that comes after it was told of is waited for", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		var handled diary
		p := unpolled(db, noting(&handled)) // and its lease is an hour
		h := inbox.NewHandover(p)
		hand(t, db, h, func(take takePage) takePage {
			return func(page []*message.Message) error {
				err := take(page)
				h.Ended() // nobody waited for the answer
				for range 100 {
					await(t, db, `select true`) // it is looked for meanwhile
				}
				return err
			}
		}, nil, "r")
		startOffering(t, db, p)
		page(t, db, of("m1=x@k", "m2=x@l")...)
		await(t, db, `select count(*) = 3 and bool_and(status = 'done' and done_fence = 1) from inbox`)
	})

	t.Run("a number that a crash gives away again is not the same row", func(t *testing.T) {
		t.Parallel()
		url := pgtest.URL(t)
		db, narrow := open(t, url, postgres.Options{}), open(t, url, postgres.Options{MaxConns: 1})
		var handled diary
		p := unpolled(narrow, noting(&handled))
		tries := 0
		hand(t, db, inbox.NewHandover(p), func(take takePage) takePage {
			return func(page []*message.Message) error {
				err := take(page)
				if tries++; tries == 1 {
					write(t, db, `select setval(pg_get_serial_sequence('inbox', 'id'), (select max(id) from inbox))`)
					return errors.Join(err, errors.New("planted"))
				}
				return err
			}
		}, nil, "r")
		stop := startOffering(t, db, p)
		conn, err := narrow.Pool().Acquire(t.Context()) // so both pages are looked for together
		if err != nil {
			t.Fatal(err)
		}
		page(t, db, letter("m1", "x"))
		awaitAll(t, db)
		conn.Release()
		await(t, db, `select bool_and(status = 'done') from inbox`)
		stop()
		if got := handled.String(); got != "m1" || tries != 2 {
			t.Errorf("handled: %s; after %d pages", got, tries)
		}
	})
}
