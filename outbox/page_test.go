package outbox_test

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

const (
	mostMessages = 500
	mostBytes    = 1 << 20
)

func TestPages(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()

	t.Run("a page has at most 500 messages", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(mostMessages+1)...)
		settled(t, db)
		r := read(t, db, "g")
		for _, want := range []int{mostMessages, 1} {
			page := r.nextPage(t)
			if got := len(messages(t, page)); got != want {
				t.Errorf("it holds %d, want %d", got, want)
			}
			page.Ack()
		}
	})

	t.Run("a page has at most 1 MiB, or one message", func(t *testing.T) {
		db := fresh(t)
		const metadata = 40 // bytes of it, about
		for i, length := range []int{1, mostBytes / 2, mostBytes/2 - 4*metadata, 2 * mostBytes, mostBytes, 1, 1, mostBytes - metadata, 1} {
			write := `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, $3, '{"type": "letter", "ordering_key": "key"}')`
			testdb.Exec(t, db.Pool(), write, topic, strconv.Itoa(i), bytes.Repeat([]byte("x"), length))
		}
		settled(t, db)
		r := read(t, db, "g")
		var pages []string
		for range 6 {
			page := r.nextPage(t)
			all := messages(t, page)
			pages = append(pages, strings.Join(named(all), " "))
			size := 0
			for _, m := range all {
				size += len(m.Payload)
			}
			if size > mostBytes && len(all) > 1 {
				t.Errorf("%v hold %d bytes", named(all), size)
			}
			page.Ack()
		}
		testrun.Same(t, "pages", []string{"0 1 2", "3", "4", "5 6", "7", "8"}, pages)
	})

	t.Run("metadata counts too, however well it is packed", func(t *testing.T) {
		db := fresh(t)
		if _, err := db.Pool().Exec(t.Context(), `
insert into outbox (topic, message_id, payload, metadata)
select $1, n::text, '', jsonb_build_object('k', repeat('x', 400000)) from generate_series(1, 3) n`, topic); err != nil {
			t.Fatal(err)
		}
		settled(t, db)
		r := read(t, db, "g")
		for _, want := range [][]string{{"1", "2"}, {"3"}} {
			page := r.nextPage(t)
			testrun.Same(t, "messages", want, named(messages(t, page)))
			page.Ack()
		}
	})

	t.Run("a page that is refused is redelivered in halves, and at last one message at a time", func(t *testing.T) {
		testdb.Long(t, "it waits for pauses")
		db := fresh(t)
		publish(t, db, numbered(2*mostMessages)...)
		settled(t, db)
		r := read(t, db, "g")
		lengths := func(received bool, want ...int) {
			t.Helper()
			var got []int
			for range want {
				page := r.nextPage(t)
				all := messages(t, page)
				got = append(got, len(all))
				if received {
					page.Ack()
				} else {
					page.Nack()
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("received %v: lengths (-want +got):\n%s", received, diff)
			}
		}
		lengths(false, 500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1)
		lengths(true, 1, 2, 4, 8)
		lengths(false, 16, 8)
		lengths(true, 4, 8, 16, 32, 64, 128, 256, 477) // all of them
	})
}

// A failover may come between the read of a page and the commit of its receiver.
func TestSameTimeline_refusesAPageOfAnotherServer(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, "m1")
	page := read(t, db, "g").nextPage(t)
	store := func() error {
		b := &pgx.Batch{}
		outbox.SameTimeline(b, page)
		b.Queue(`insert into merchants (merchant_id) values ('stored')`)
		return db.Commit(t.Context(), b)
	}
	own := page.Metadata["timeline"]
	page.Metadata["timeline"] = "0000000F"
	if err := store(); err == nil || !strings.Contains(err.Error(), "the page was read on timeline 0000000F, this is "+own) {
		t.Errorf("stored with %v", err)
	}
	if testdb.One[bool](t, db, `select exists (select from merchants where merchant_id = 'stored')`) {
		t.Error("what stands behind it has an effect")
	}
	page.Metadata["timeline"] = own
	testdb.Must(t, store())
}

func TestMessages_refusesWhatIsNoPage(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{"nothing": "", "text": "m1", "a page that is cut": `[{"id": "m1"`, "one message": `{"id": "m1"}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := outbox.Messages(message.NewMessage("last", []byte(payload)))
			if err == nil || !strings.HasPrefix(err.Error(), "read page last of the outbox: ") {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// Transaction ids are numbers. Sorted as text, 100 comes before 98, and a page
// that ends there moves the offset past messages that no group has received.
func TestPages_areOrderedByTransactionIDsAsNumbers(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	const oldest, newest = 2, 400 // over two pages, and across 9|10 and 99|100
	b := &pgx.Batch{}
	for xid := newest; xid >= oldest; xid-- {
		for _, id := range []string{strconv.Itoa(xid), strconv.Itoa(xid) + " again"} {
			b.Queue(`insert into outbox (topic, transaction_id, message_id, payload, metadata) values ($1, $2::text::xid8, $3, '{}', '{}')`,
				topic, strconv.Itoa(xid), id)
		}
	}
	testdb.Must(t, db.Commit(t.Context(), b))
	r := read(t, db, "g")
	for xid := oldest; xid <= newest; xid++ {
		want := []string{strconv.Itoa(xid), strconv.Itoa(xid) + " again"}
		if diff := cmp.Diff(want, r.take(t, 2)); diff != "" {
			t.Fatalf("messages of a transaction (-want +got):\n%s", diff)
		}
	}
}

// The SQL that Schema's comment gives for a database without payonce's other tables.
func TestRepair_makesARestoredOutboxReadable(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, "m1")
	r := read(t, db, "g")
	r.wantNext(t, "m1")
	publish(t, db, "m2", "m3")
	r.wantNext(t, "m2", "m3")
	write(t, db, `update numbering_mark set written_in = '7'`)                         // as a dump leaves it
	write(t, db, `update outbox set transaction_id = '99999' where message_id = 'm1'`) // and another server's numbers
	publish(t, db, "m4")
	r.wantNone(t)
	_, repair, _ := strings.Cut(outbox.Schema(), "--   begin;\n")
	repair, _, _ = strings.Cut(repair, "--   commit;\n")
	testdb.Must(t, pgx.BeginFunc(t.Context(), db.Pool(), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), strings.ReplaceAll(repair, "--   ", ""), pgx.QueryExecModeSimpleProtocol)
		return err
	}))
	publish(t, db, "m5")
	r.wantNext(t, "m1", "m2", "m3", "m4", "m5")
}
