package rediscache_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/migrations"
)

// TestStateOfTheDatabase: an answer is found only where the database is the one
// that had it, in the history in which it had it.
func TestStateOfTheDatabase(t *testing.T) {
	pgtest.Long(t, "it starts servers")
	t.Parallel()

	t.Run("after the table was emptied nothing of before is found", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		w.kept(t, theKey(), "ch_1")
		changed := w.watched()
		w.exec(t, `truncate idempotency_keys`)
		await.True(t, "that is known", changed)
		if w.finds(t, theKey()) {
			t.Error("the answer of before is found")
		}
		again := w.kept(t, theKey(), "ch_2")
		w.wantFound(t, theKey(), again)
		if len(redis.all()) != 2 {
			t.Errorf("there are %d entries", len(redis.all()))
		}
	})

	t.Run("an answer that was lost before it was kept is not kept for what comes after", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		w.kept(t, numbered(1), "ch_1")
		_, _, keep := w.recall(t, theKey(), theRequest())
		lost := w.store(t, theKey(), theRequest(), theAnswer("ch_2"), inAnHour())
		changed := w.watched()
		w.exec(t, `truncate idempotency_keys`)
		await.True(t, "that is known", changed)
		keep(lost)
		w.kept(t, numbered(2), "ch_3") // after the lost one
		if w.finds(t, theKey()) || len(redis.all()) != 3 {
			t.Errorf("it is found among %d entries", len(redis.all()))
		}
	})

	t.Run("a copy of the database finds nothing of the original's", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		original, dump := newWorld(t, redis.url()), newWorld(t, redis.url())
		var secret []byte
		if err := original.db.QueryRow(t.Context(), `select secret from cache_secret`).Scan(&secret); err != nil {
			t.Fatal(err)
		}
		if _, err := dump.db.Pool().Exec(t.Context(), `update cache_secret set secret = $1`, secret); err != nil {
			t.Fatal(err)
		}
		dump.kept(t, numbered(1), "ch_1")
		original.kept(t, theKey(), "ch_2")
		if dump.finds(t, theKey()) {
			t.Error("it is found")
		}
	})

	t.Run("after a restart, on a standby and after its promotion nothing of before is found", func(t *testing.T) {
		t.Parallel()
		// Files that were put back look like a restart and cannot be told apart.
		server, db := ownServer(t)
		redis := newFake(t)
		w := newWorldOn(t, db, redis.url())
		w.kept(t, theKey(), "ch_1")
		changed := w.watched()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		await.True(t, "that is known", changed)
		if w.finds(t, theKey()) {
			t.Error("the answer of before is found")
		}
		var stored idempotency.Record
		await.True(t, "the database answers again", func() bool { // over new connections
			var err error
			var state idempotency.KeyState
			state, err = idempotency.ReadKey(t.Context(), db, theKey())
			stored = state.Record
			return err == nil
		})
		w.keep(t, theKey(), stored)
		if len(redis.all()) != 2 {
			t.Errorf("there are %d entries, want one of before and one of after", len(redis.all()))
		}

		var folder string
		if err := db.QueryRow(t.Context(), `show data_directory`).Scan(&folder); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "standby.signal"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		var standby bool
		await.True(t, "the standby answers", func() bool {
			return db.QueryRow(t.Context(), `select pg_is_in_recovery()`).Scan(&standby) == nil
		})
		await.True(t, "the answer of before is not found on a standby", func() bool { return standby && w.cache.State() == "" && !w.finds(t, theKey()) })
		var timeline string
		await.True(t, "the standby is promoted", func() bool {
			_, _ = db.Pool().Exec(t.Context(), `select pg_promote()`)
			return db.QueryRow(t.Context(), `select left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)`).Scan(&timeline) == nil
		})
		if timeline != "00000002" {
			t.Errorf("the timeline is %s", timeline)
		}
		w.keep(t, theKey(), stored)
		if len(redis.all()) != 3 {
			t.Errorf("there are %d entries, want one of each history", len(redis.all()))
		}
	})

	t.Run("an ordinary role may read it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		// Roles belong to the whole server, so this one is never committed.
		role := "reader_" + strings.ToLower(rand.Text())
		for _, sql := range []string{
			"create role " + role, "grant select on cache_secret to " + role, "set local role " + role,
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		w := opened(t, &world{reads: &reads{Querier: tx}}, newFake(t).url())
		record := idempotency.Record{Answer: theAnswer("ch_1"), Fingerprint: theRequest().Fingerprint, ExpiresAt: inAnHour()}
		w.keep(t, theKey(), record)
		w.cache.Close() // before the transaction ends
	})
}

// ownServer is a server of the test's own, to be restarted, with the schema.
func ownServer(t *testing.T) (*local.Server, *postgres.DB) {
	t.Helper()
	server, err := local.Start(t.Context(), local.Options{InMemory: true, Fsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := migrations.Up(t.Context(), server.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Open(t.Context(), server.URL("postgres"), postgres.Options{Application: t.Name(), AllowReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return server, db
}

func TestKnownTooLongAgo(t *testing.T) {
	t.Parallel()

	t.Run("nothing is found two seconds after the database was asked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		record := w.kept(t, theKey(), "ch_1")
		w.reads.hangs.Store(true)
		w.ahead.Add(int64(2*time.Second + time.Millisecond))
		if w.finds(t, theKey()) {
			t.Error("it is found")
		}
		w.reads.hangs.Store(false)
		w.wantFound(t, theKey(), record)
	})

	t.Run("nor when Redis took that long", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		w.kept(t, theKey(), "ch_1")
		w.reads.hangs.Store(true)
		redis.does(func(command []string) string {
			if command[0] == "GETRANGE" {
				w.ahead.Add(int64(3 * time.Second))
			}
			return ""
		})
		if w.finds(t, theKey()) {
			t.Error("it is found")
		}
	})

	t.Run("nor once the database was not to be read", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		record := w.kept(t, theKey(), "ch_1")
		before := w.said.count("database")
		w.reads.fails.Store(true)
		await.True(t, "that is logged", func() bool { return w.said.count("database") > before })
		if w.finds(t, theKey()) { // the last reading is hardly a second old
			t.Error("it is found")
		}
		w.reads.fails.Store(false)
		w.wantFound(t, theKey(), record)
	})

	t.Run("nor after Close", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		w.kept(t, theKey(), "ch_1")
		_, _, keep := w.recall(t, theKey(), theRequest())
		w.cache.Close()
		if w.finds(t, theKey()) {
			t.Error("it is found")
		}
		keep(idempotency.Record{}) // and nobody falls over it
	})
}
