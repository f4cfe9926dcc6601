package service_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/service"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// A commit wakes what it gives work to, and nothing else, whether it shares its transaction or
// not: one with a statement that is not declared does not.
func TestCommitted(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	var woken []string
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{
		Writes: service.Statements(inbox.Writes()...), Committed: func(names []string) { woken = append(woken, names...) },
	})
	message := func(b *pgx.Batch, topic, id string) {
		testdb.Must(t, outbox.Append(b, outbox.Message{Topic: topic, ID: id}))
	}
	undeclared := func(b *pgx.Batch) { b.Queue(`insert into merchants (merchant_id) values ('m')`) }
	for name, test := range map[string]struct {
		queue func(*pgx.Batch)
		want  []string
	}{
		"messages": {func(b *pgx.Batch) { message(b, "t", "1"); message(b, "u", "2"); message(b, "t", "3") }, []string{"t", "u"}},
		"an event": {func(b *pgx.Batch) {
			_, err := ledger.Append(b, ledger.New("ch_1"), ledger.Cause{CorrelationID: "a", CausationID: "a", Actor: "a"}, domain.ChargeRequested{Terms: domain.Terms{
				MerchantID: "acme", Money: domain.Money{Amount: 1000, Currency: "EUR"},
			}, Steps: []string{domain.Payment}})
			testdb.Must(t, err)
		}, []string{service.Ledger}},
		"a message of the inbox":         {func(b *pgx.Batch) { inbox.Append(b, "r", inbox.Message{ID: "1"}) }, []string{"r"}},
		"a message beside another write": {func(b *pgx.Batch) { undeclared(b); message(b, "t", "4") }, []string{"t"}},
	} {
		b := &pgx.Batch{}
		test.queue(b)
		testdb.Must(t, db.Commit(t.Context(), b))
		testrun.Same(t, name, test.want, woken)
		woken = nil
	}
	b := &pgx.Batch{}
	message(b, "t", "5")
	undeclared(b)
	if err := db.Commit(t.Context(), b); err == nil || woken != nil {
		t.Errorf("a refused commit: %v, wakes %v", err, woken)
	}
}

// What a program handles itself, and the ledger, is rung for in this process alone.
func TestCommitted_ringsInOtherProcessesForWhatTheProgramDoesNotHandle(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db := testdb.Open(t)
	conn := testdb.Session(t, db.Pool().Config().ConnString())
	testdb.Exec(t, conn, "listen payonce_due")
	testdb.Warm(t, db.Pool(), 2) // for LISTEN, and for NOTIFY, which has a second
	d := service.NewBell(slog.New(slog.DiscardHandler))
	own := d.Bell("own")
	events := d.Bell(service.Ledger)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { d.Run(ctx, db.Pool()); close(ended) }()
	defer func() { cancel(); testrun.Receive(t, "the doorbell's end", ended) }()
	for _, bell := range []<-chan struct{}{own, events} {
		testrun.Receive(t, "it listens", bell)
	}
	service.Committed(d, "own")([]string{"own", service.Ledger, "foreign"})
	testrun.Receive(t, "the own ring", own)
	testrun.Receive(t, "the ring of the ledger", events)
	n, err := conn.WaitForNotification(ctx)
	testdb.Must(t, err)
	testdb.Exec(t, db.Pool(), `notify payonce_due, 'the end'`)
	last, err := conn.WaitForNotification(ctx)
	testdb.Must(t, err)
	if got := []string{n.Payload, last.Payload}; !slices.Equal(got, []string{"foreign", "the end"}) {
		t.Errorf("other processes hear %v", got)
	}
}

// A refusal names the variable and repeats no value, which may hold a password. The library would pass
// over these.
func TestRun_refusesSettingsOfTraces(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	run := func(environ map[string]string) error {
		return service.Run(t.Context(), log, environ, service.Options{Name: "test"}, func(_ context.Context, s *service.Service) error {
			if s.Traces == nil || s.Log == log {
				t.Errorf("traces are on: %t, lines name them: %t", s.Traces != nil, s.Log != log)
			}
			return nil
		})
	}
	testdb.Must(t, run(map[string]string{ // in capitals
		"OTEL_TRACES_EXPORTER": "OTLP", "OTEL_EXPORTER_OTLP_PROTOCOL": "HTTP/Protobuf", "OTEL_TRACES_SAMPLER": "ParentBased_Always_On",
	}))
	for _, c := range [][2]string{
		{"OTEL_TRACES_EXPORTER", "private"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
		{"OTEL_TRACES_SAMPLER", "traceidratio"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "user:private@collector:4318"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://%private"},
		{"OTEL_TRACES_SAMPLER_ARG", "1.5"},
		{"OTEL_TRACES_SAMPLER_ARG", "NaN"},
		{"OTEL_BSP_SCHEDULE_DELAY", "0"},
		{"OTEL_BSP_EXPORT_TIMEOUT", "-1"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "99999999999999"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "private"},
	} {
		err := run(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", c[0]: c[1]})
		if err == nil || !strings.HasPrefix(err.Error(), c[0]+" cannot be followed: set it to ") || strings.Contains(err.Error(), "private") {
			t.Errorf("%s=%s is refused with %v", c[0], c[1], err)
		}
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }
