package doorbell_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// start runs a doorbell until the test ends.
func start(t *testing.T, database string, log *await.Log, listen bool) *doorbell.Doorbell {
	t.Helper()
	d, err := doorbell.New(database, slog.New(slog.NewTextHandler(log, nil)), doorbell.Options{Application: "payonce-test-doorbell", Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { d.Run(ctx); close(ended) }()
	t.Cleanup(func() {
		cancel()
		await.Receive(t, "the doorbell's end", ended)
	})
	return d
}

func listening(t *testing.T, database string, log *await.Log) *doorbell.Doorbell {
	t.Helper()
	d := start(t, database, log, true)
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
	near, far := listening(t, database, &await.Log{}), listening(t, database, &await.Log{})
	bells := func(d *doorbell.Doorbell) map[string]<-chan struct{} {
		return map[string]<-chan struct{}{
			"outbox": d.Bell(doorbell.Outbox), "inbox": d.Bell(doorbell.Inbox), "ledger": d.Bell(doorbell.Ledger),
			"outbox or ledger": d.Bell(doorbell.Outbox | doorbell.Ledger),
		}
	}
	here, there := bells(near), bells(far)
	ringing := func(all map[string]<-chan struct{}, heard map[string]bool) string {
		var names []string
		for _, name := range []string{"outbox", "inbox", "ledger", "outbox or ledger"} {
			if heard[name] = heard[name] || rung(all[name]); heard[name] {
				names = append(names, name)
			}
		}
		return strings.Join(names, ", ")
	}
	for _, test := range []struct {
		kinds       doorbell.Kind
		here, there string
	}{
		{doorbell.Outbox, "outbox, outbox or ledger", "outbox, outbox or ledger"},
		{doorbell.Inbox, "inbox", "inbox"},
		{doorbell.Outbox | doorbell.Inbox, "outbox, inbox, outbox or ledger", "outbox, inbox, outbox or ledger"},
		{doorbell.Ledger, "ledger, outbox or ledger", ""},
		{doorbell.Ledger | doorbell.Inbox, "inbox, ledger, outbox or ledger", "inbox"},
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
	far.Ring(doorbell.Inbox)
	await.True(t, "the ring of the other is heard", func() bool { return rung(here["inbox"]) })
	if got := ringing(here, map[string]bool{}); got != "" {
		t.Errorf("rings of its own are repeated: %s", got)
	}
}

// Ring does not wait, and many rings are few notifications.
func TestRingsAreCoalesced(t *testing.T) {
	t.Parallel()
	database := testdb.URL(t)
	near := listening(t, database, &await.Log{})
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "listen payonce_due"); err != nil {
		t.Fatal(err)
	}
	const rings = 10_000
	for range rings {
		near.Ring(doorbell.Outbox)
	}
	near.Ring(doorbell.Inbox)
	heard := 0
	for kinds := ""; kinds != "2" && kinds != "3"; heard++ {
		n, err := conn.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, kinds, _ = strings.Cut(n.Payload, " ")
	}
	if heard > rings/100 {
		t.Errorf("%d rings are %d notifications", rings, heard)
	}
}

// A commit rings for what it leaves to be done, and for nothing else.
func TestCommitted(t *testing.T) {
	t.Parallel()
	var rung doorbell.Kind
	db, err := postgres.Open(t.Context(), testdb.URL(t), postgres.Options{
		AllowUnsafeDurability: true, Committed: func(b *pgx.Batch) { rung |= doorbell.Of(b) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	message := func(b *pgx.Batch) error {
		return outbox.Append(b, outbox.Message{Topic: "t", ID: "m1", Type: "t", Payload: []byte("x")})
	}
	event := func(b *pgx.Batch) error {
		_, err := ledger.Append(b, ledger.New("ch_1"), ledger.Cause{CorrelationID: "a", CausationID: "a", Actor: "a"}, domain.ChargeRequested{
			MerchantID: "acme", Amount: 1000, Currency: "EUR",
		})
		return err
	}
	for name, test := range map[string]struct {
		queue func(*pgx.Batch) error
		want  doorbell.Kind
	}{
		"a message of the outbox": {message, doorbell.Outbox},
		"an event":                {event, doorbell.Ledger},
		"an accepted message": {
			func(b *pgx.Batch) error { return inbox.Accept(b, "r", inbox.Message{ID: "m1"}) }, doorbell.Inbox,
		},
		"another write": {
			func(b *pgx.Batch) error { b.Queue(`insert into merchants (merchant_id) values ('m')`); return nil }, 0,
		},
	} {
		b := &pgx.Batch{}
		if err := test.queue(b); err != nil {
			t.Fatal(err)
		}
		if err := db.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if rung != test.want {
			t.Errorf("%s rings for %b, want %b", name, rung, test.want)
		}
		rung = 0
	}
	refused := &pgx.Batch{}
	refused.Queue(`insert into merchants (merchant_id) values ('m')`)
	if err := message(refused); err != nil {
		t.Fatal(err)
	}
	if err := db.Commit(t.Context(), refused); err == nil || rung != 0 {
		t.Errorf("a refused commit: %v", err)
	}
}

// A connection that is lost is said once, and is made again. What was rung meanwhile is
// looked for.
func TestListening(t *testing.T) {
	t.Parallel()
	database := testdb.URL(t)
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(t.Context())) }()
	log := &await.Log{}
	d := listening(t, database, log)
	bell := d.Bell(doorbell.Outbox)
	for lost := 1; lost <= 2; lost++ {
		if _, err := db.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'listen%'`); err != nil {
			t.Fatal(err)
		}
		await.True(t, "a waiter is woken for rings that were lost", func() bool { return rung(bell) })
		await.True(t, "it listens again", d.Listening)
		await.Progress(t, "the loss is logged", func() (string, bool) {
			return log.String(), strings.Count(log.String(), "the doorbell is not heard") == lost
		})
	}
	rung(bell)
	other := start(t, database, &await.Log{}, false)
	other.Ring(doorbell.Outbox)
	await.True(t, "a ring is heard", func() bool { return rung(bell) })
	if other.Listening() {
		t.Error("a doorbell that only rings reports that it listens")
	}
}

// A pooler that shares sessions accepts LISTEN and delivers nothing. So does this database:
// a function of the same name is found before the server's own.
func TestListening_notBehindAPoolerThatDeliversNothing(t *testing.T) {
	testdb.Long(t, "it waits for what does not come")
	t.Parallel()
	database := testdb.URL(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `
create schema deaf;
create function deaf.pg_notify(text, text) returns void language sql as ''`); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("search_path", "deaf,pg_catalog")
	address.RawQuery = query.Encode()
	log := &await.Log{}
	d := start(t, address.String(), log, true)
	await.Progress(t, "it says that it does not hear", func() (string, bool) {
		return log.String(), strings.Contains(log.String(), "the doorbell is not heard")
	})
	if d.Listening() {
		t.Error("it says that it listens")
	}
}
