package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// The kinds of a program that uses the doorbell.
const (
	kindMessages = outbox.KindMessages
	kindLetters  = kindMessages << 1
	kindLocal    = kindLetters << 1 // stays in the process
)

// start runs a doorbell until the test ends.
func start(t *testing.T, database string, log *await.Log, o outbox.DoorbellOptions) *outbox.Doorbell {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), database)
	testdb.Must(t, err)
	t.Cleanup(pool.Close)
	o.Log, o.Local = slog.New(slog.NewTextHandler(log, nil)), kindLocal
	d := outbox.NewDoorbell(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { d.Run(ctx, pool); close(ended) }()
	t.Cleanup(func() {
		cancel()
		await.Receive(t, "the doorbell's end", ended)
	})
	return d
}

func hearing(t *testing.T, database string, log *await.Log) *outbox.Doorbell {
	t.Helper()
	d := start(t, database, log, outbox.DoorbellOptions{})
	await.True(t, "it listens", d.Listening)
	return d
}

// rung reports whether a bell rings, and stops it.
func rung(bell <-chan struct{}) bool {
	select {
	case <-bell:
		return true
	default:
		return false
	}
}

func TestRing(t *testing.T) {
	t.Parallel()
	database := testdb.URL(t)
	near, far := hearing(t, database, &await.Log{}), hearing(t, database, &await.Log{})
	bells := func(d *outbox.Doorbell) map[string]<-chan struct{} {
		return map[string]<-chan struct{}{
			"messages": d.Bell(kindMessages), "letters": d.Bell(kindLetters), "local": d.Bell(kindLocal),
			"messages or local": d.Bell(kindMessages | kindLocal),
		}
	}
	here, there := bells(near), bells(far)
	ringing := func(all map[string]<-chan struct{}, heard map[string]bool) string {
		var names []string
		for _, name := range []string{"messages", "letters", "local", "messages or local"} {
			if heard[name] = heard[name] || rung(all[name]); heard[name] {
				names = append(names, name)
			}
		}
		return strings.Join(names, ", ")
	}
	for _, test := range []struct {
		kinds       outbox.Kind
		here, there string
	}{
		{kindMessages, "messages, messages or local", "messages, messages or local"},
		{kindLetters, "letters", "letters"},
		{kindMessages | kindLetters, "messages, letters, messages or local", "messages, letters, messages or local"},
		{kindLocal, "local, messages or local", ""},
		{kindLocal | kindLetters, "letters, local, messages or local", "letters"},
		{0, "", ""},
	} {
		near.Ring(test.kinds)
		for where, want := range map[string]string{"the same": test.here, "another": test.there} {
			bells, heard := here, map[string]bool{}
			if where == "another" {
				bells = there
			}
			await.Progress(t, fmt.Sprintf("rung for %b, in %s process rings: %s", test.kinds, where, want), func() (string, bool) {
				got := ringing(bells, heard)
				return got, got == want
			})
		}
	}
	// A ring of another one comes behind those: none of them came back.
	far.Ring(kindLetters)
	await.True(t, "the ring of the other is received", func() bool { return rung(here["letters"]) })
	if got := ringing(here, map[string]bool{}); got != "" {
		t.Errorf("rings of its own are repeated: %s", got)
	}
}

// Ring does not wait, and many rings are few notifications.
func TestRing_sendsOneNotificationForSeveralCalls(t *testing.T) {
	t.Parallel()
	database := testdb.URL(t)
	near := hearing(t, database, &await.Log{})
	conn, err := pgx.Connect(t.Context(), database)
	testdb.Must(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	testdb.Exec(t, conn, "listen outbox")
	const rings = 10_000
	for range rings {
		near.Ring(kindMessages)
	}
	near.Ring(kindLetters)
	heard := 0
	for kinds := ""; kinds != "2" && kinds != "3"; heard++ {
		n, err := conn.WaitForNotification(t.Context())
		testdb.Must(t, err)
		kinds = strings.Fields(n.Payload)[1]
	}
	if heard > rings/100 {
		t.Errorf("%d rings are %d notifications", rings, heard)
	}
}

// A connection that is lost is said once, and is made again. What was rung meanwhile is
// looked for.
func TestListening(t *testing.T) {
	t.Parallel()
	database := testdb.URL(t)
	db, log := testdb.Connect(t, database), &await.Log{}
	d := hearing(t, database, log)
	bell := d.Bell(kindMessages)
	for lost := 1; lost <= 2; lost++ {
		testdb.Exec(t, db.Pool(), `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'listen%'`)
		await.True(t, "a waiter is woken for rings that were lost", func() bool { return rung(bell) })
		await.True(t, "it listens again", d.Listening)
		await.Progress(t, "the loss is logged", func() (string, bool) {
			return log.String(), strings.Count(log.String(), "LISTEN receives nothing") == lost
		})
	}
	rung(bell)
	other := start(t, database, &await.Log{}, outbox.DoorbellOptions{RingOnly: true})
	other.Ring(kindMessages)
	await.True(t, "a ring is received", func() bool { return rung(bell) })
	if other.Listening() {
		t.Error("a doorbell that only rings reports that it listens")
	}
}

// Of several processes one is the leader: its bells ring without a ring. When it ends, another
// one is. One that only rings is never.
func TestDoorbell_ofTheLeaderRingsOnceASecond(t *testing.T) {
	testdb.Long(t, "a lock is looked for every five seconds")
	t.Parallel()
	database := testdb.URL(t)
	start(t, database, &await.Log{}, outbox.DoorbellOptions{RingOnly: true}).Ring(kindLetters)
	var second <-chan struct{}
	until := t
	t.Run("the first", func(t *testing.T) {
		first := hearing(t, database, &await.Log{}).Bell(kindMessages)
		await.True(t, "it is the leader", func() bool { return rung(first) })
		second = hearing(until, database, &await.Log{}).Bell(kindMessages)
		for range 3 {
			await.True(t, "it is still the leader", func() bool { return rung(first) })
		}
		if rung(second) {
			t.Error("two processes are leaders")
		}
	})
	await.True(t, "the second is the leader", func() bool { return rung(second) })
}

// A pooler that shares sessions accepts LISTEN and delivers nothing. So does this database:
// a function of the same name is found before the server's own.
func TestListening_notBehindAPoolerThatDeliversNothing(t *testing.T) {
	testdb.Long(t, "it waits for what does not come")
	t.Parallel()
	database := testdb.URL(t)
	db := testdb.Connect(t, database)
	testdb.Exec(t, db.Pool(), `create schema deaf`)
	testdb.Exec(t, db.Pool(), `create function deaf.pg_notify(text, text) returns void language sql as ''`)
	log := &await.Log{}
	d := start(t, database+"&search_path=deaf,pg_catalog", log, outbox.DoorbellOptions{})
	await.Progress(t, "it says that it does not hear", func() (string, bool) {
		return log.String(), strings.Contains(log.String(), "LISTEN receives nothing")
	})
	if d.Listening() {
		t.Error("it says that it listens")
	}
}

// What is rung for before the end is notified.
func TestDoorbell_notifiesOnceMoreWhenItEnds(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testdb.URL(t))
	testdb.Must(t, err)
	t.Cleanup(pool.Close)
	listener, err := pool.Acquire(t.Context())
	testdb.Must(t, err)
	defer listener.Release()
	testdb.Exec(t, listener, `listen outbox`)
	d := outbox.NewDoorbell(outbox.DoorbellOptions{RingOnly: true})
	d.Ring(kindLetters)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Run(ctx, pool)
	testdb.Exec(t, pool, `notify outbox, 'the end'`)
	first, err := listener.Conn().WaitForNotification(t.Context())
	testdb.Must(t, err)
	if first.Payload == "the end" {
		t.Error("the ring was lost")
	}
}
