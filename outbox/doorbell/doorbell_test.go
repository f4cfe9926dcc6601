package doorbell_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox/doorbell"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// run runs a doorbell until the test ends, and makes its bells before.
func run(t *testing.T, database string, log *testrun.Log, names ...string) (d *doorbell.Doorbell, bells map[string]<-chan struct{}) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), database)
	testdb.Must(t, err)
	t.Cleanup(pool.Close)
	testdb.Warm(t, pool, 2) // for LISTEN, and for NOTIFY, which has a second
	d, bells = doorbell.New("doorbell", slog.New(slog.NewTextHandler(log, nil))), map[string]<-chan struct{}{}
	for _, name := range names {
		bells[name] = d.Bell(strings.Split(name, "+")...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { d.Run(ctx, pool); close(ended) }()
	t.Cleanup(func() {
		cancel()
		testrun.Receive(t, "the doorbell's end", ended)
	})
	for _, bell := range bells {
		testrun.Receive(t, "it listens, and so rings for what was missed", bell)
	}
	return d, bells
}

// listens is a session that listens as doorbells do.
func listens(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn := testdb.Session(t, database)
	testdb.Exec(t, conn, "listen doorbell")
	return conn
}

// hear returns what is notified, until the last.
func hear(t *testing.T, conn *pgx.Conn, last string) (heard []string) {
	t.Helper()
	for !slices.Contains(heard, last) {
		n, err := conn.WaitForNotification(t.Context())
		testdb.Must(t, err)
		heard = append(heard, n.Payload)
	}
	return heard
}

const terminate = `
select count(pg_terminate_backend(pid, 10000))
  from pg_stat_activity
 where datname = current_database()
   and query like 'listen%'`

func TestDoorbell_wakesInEachProcessWhatWaitsForTheName(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	database := testdb.URL(t)
	names := []string{"a", "a+b", "b"}
	near, here := run(t, database, &testrun.Log{}, names...)
	_, there := run(t, database, &testrun.Log{}, names...)
	for _, test := range []struct {
		ring string
		want []string
	}{
		{"a", []string{"a", "a+b"}}, {"b", []string{"a+b", "b"}}, {"c", nil},
	} {
		near.Ring(test.ring)
		for where, bells := range map[string]map[string]<-chan struct{}{"this process": here, "the other": there} {
			for _, name := range test.want {
				testrun.Receive(t, "the ring of "+test.ring+" in "+where, bells[name])
			}
		}
	}
	near.Wake("b")
	testrun.Receive(t, "a wake in this process", here["b"])
	near.Ring("a") // behind it: when this has come, a notification of b would have come
	testrun.Receive(t, "the ring of a", there["a"])
	select {
	case <-there["b"]:
		t.Error("Wake goes to another process")
	default:
	}
}

// Ring does not wait, and many rings are few notifications.
func TestDoorbell_sendsOneNotificationForManyRings(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	database := testdb.URL(t)
	d, _ := run(t, database, &testrun.Log{})
	conn := listens(t, database)
	const rings = 10_000
	for range rings {
		d.Ring("a")
	}
	d.Ring("last")
	if heard := hear(t, conn, "last"); len(heard) > rings/100 {
		t.Errorf("%d rings are %d notifications", rings, len(heard))
	}
}

// What was rung before the end is notified, also while the program ends.
func TestDoorbell_sendsTheLastRingsWhenItEnds(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	database := testdb.URL(t)
	conn := listens(t, database)
	pool, err := pgxpool.New(t.Context(), database)
	testdb.Must(t, err)
	defer pool.Close()
	testdb.Warm(t, pool, 1)
	for range 20 { // whichever of the ring and the end is seen first
		d := doorbell.New("doorbell", slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { d.Run(ctx, pool) })
		d.Ring("last")
		cancel()
		ended.Wait()
		testdb.Exec(t, pool, `notify doorbell, 'the end'`)
		testrun.Same(t, "notifications", []string{"last", "the end"}, hear(t, conn, "the end"))
	}
}

// A connection that is lost is logged, and made again. What was rung meanwhile is looked for,
// and no session is left behind.
func TestDoorbell_listensAgainAfterItsSessionIsLost(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	database := testdb.URL(t)
	db, log := testdb.Connect(t, database), &testrun.Log{}
	_, bells := run(t, database, log, "a")
	other, _ := run(t, database, &testrun.Log{})
	for lost := 1; lost <= 2; lost++ {
		if n := testdb.One[int](t, db, terminate); n != 1 {
			t.Fatalf("%d sessions listen", n)
		}
		testrun.Receive(t, "a waiter is woken for rings that were lost", bells["a"])
		if n := strings.Count(log.String(), "LISTEN was lost"); n != lost {
			t.Errorf("%d losses are logged of %d", n, lost)
		}
		other.Ring("a")
		testrun.Receive(t, "a ring is received", bells["a"])
	}
}

// Where LISTEN fails, the log says why work waits for polls.
func TestDoorbell_logsThatItCannotListen(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testdb.URL(t))
	testdb.Must(t, err)
	defer pool.Close()
	log := &testrun.Log{}
	d := doorbell.New("", slog.New(slog.NewTextHandler(log, nil))) // the server refuses the empty name
	d.Bell("a")
	var ended sync.WaitGroup
	defer ended.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended.Go(func() { d.Run(ctx, pool) })
	testrun.True(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "LISTEN failed") })
}
