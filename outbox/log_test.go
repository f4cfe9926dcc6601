package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

func linesOf(log *await.Log) []string {
	return strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
}

// switchable connects to a database, or fails as one that is away.
type switchable struct {
	driver.Connector
	away     atomic.Bool
	failures atomic.Int64
}

var errAway = errors.New("dial tcp 127.0.0.1:5432: connect: connection refused")

func (s *switchable) Connect(ctx context.Context) (driver.Conn, error) {
	if s.away.Load() {
		s.failures.Add(1)
		return nil, errAway
	}
	return s.Connector.Connect(ctx)
}

// failFor waits until so many further reads have failed.
func (s *switchable) failFor(t *testing.T, reads int64) {
	t.Helper()
	want := s.failures.Load() + reads
	await.Progress(t, fmt.Sprintf("%d reads fail", reads), func() (string, bool) {
		n := s.failures.Load()
		return fmt.Sprintf("%d of %d", n, want), n >= want
	})
}

func TestSubscriber_boundsItsLogWhileTheDatabaseIsAway(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	pool := testdb.Open(t).Pool()
	db := &switchable{Connector: stdlib.GetPoolConnector(pool)}
	conns := sql.OpenDB(db)
	defer func() { _ = conns.Close() }()
	conns.SetMaxIdleConns(0) // each read connects

	log := &await.Log{}
	var minutes atomic.Int64
	now := func() time.Time { return time.Unix(0, 0).Add(time.Duration(minutes.Load()) * time.Minute) }
	subscriber := outbox.NewImpatientSubscriber(conns, "g", slog.New(slog.NewJSONHandler(log, nil)), now)
	pages, err := subscriber.Subscribe(t.Context(), "topic")
	must(t, err)

	db.away.Store(true)
	db.failFor(t, 1000)
	if lines := linesOf(log); len(lines) != 1 || len(log.String()) > 1000 || !strings.Contains(lines[0], errAway.Error()) {
		t.Fatalf("after 1,000 failures within a minute the log has %d lines and %d bytes, want 1 line of at most 1,000 bytes. It begins: %.300s",
			len(lines), len(log.String()), log)
	}
	minutes.Add(1)
	db.failFor(t, 1000)
	if lines := linesOf(log); len(lines) != 2 || len(log.String()) > 2000 {
		t.Fatalf("a minute and 1,000 failures later the log has %d lines and %d bytes, want 2 lines:\n%s", len(lines), len(log.String()), log)
	}
	for _, line := range linesOf(log) {
		if strings.Count(line, `"topic":`) != 1 || strings.Count(line, `"consumer_group":`) != 1 {
			t.Errorf("a key is missing or there twice: %s", line)
		}
	}

	db.away.Store(false)
	await.True(t, "a line says that reading works again", func() bool { return strings.Contains(log.String(), "works again") })
	var last struct {
		Topic    string
		Group    string `json:"consumer_group"`
		Failures int64
	}
	lines := linesOf(log)
	must(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	if len(lines) != 3 || last.Topic != "topic" || last.Group != "g" || last.Failures != db.failures.Load() {
		t.Errorf("the last of %d lines is %q, want the third, with %d failures", len(lines), lines[len(lines)-1], db.failures.Load())
	}

	db.away.Store(true)
	db.failFor(t, 1000)
	if lines := linesOf(log); len(lines) != 4 {
		t.Errorf("a second outage within the minute has %d lines, want 1 of its own:\n%s", len(lines)-3, log)
	}
	db.away.Store(false)
	if err := subscriber.Close(); err != nil {
		t.Error(err)
	}
	for range pages {
		t.Error("a page of an empty outbox")
	}
}
