package rediscache_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/migrations"
)

// TestStateOfTheDatabase: an answer is found only where the database is the one
// that had it, in the history in which it had it.
func TestStateOfTheDatabase(t *testing.T) {
	testdb.Long(t, "it starts servers")
	t.Parallel()

	t.Run("after a truncate nothing from before is found, nor kept", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.keep(t, keyOf("key"), recordOf("ch_1"))
		before := f.Find(t.Context(), keyOf("lost"), nil)
		f.awaitOtherState(t, func() { f.exec(t, `truncate idempotency_keys`) })
		before.Keep(recordOf("ch_2"))
		f.keep(t, numbered(1), recordOf("ch_3")) // after the lost one
		f.wantNotFound(t, keyOf("key"), "from before")
		f.wantNotFound(t, keyOf("lost"), "from before")
		if n := len(f.redis.all()); n != 3 {
			t.Errorf("there are %d entries", n)
		}
	})

	t.Run("a copy of the database finds nothing of the original's", func(t *testing.T) {
		t.Parallel()
		original := newFixture(t)
		dump := newFixtureOn(t, testdb.Open(t), original.redis.url())
		const secret = `update cache_secret set secret = sha256('the same')`
		original.awaitOtherState(t, func() { original.exec(t, secret) })
		dump.awaitOtherState(t, func() { dump.exec(t, secret) })
		dump.keep(t, numbered(1), recordOf("ch_1"))
		original.keep(t, keyOf("key"), recordOf("ch_2"))
		dump.wantNotFound(t, keyOf("key"), "of the original")
	})

	t.Run("after a restart, on a standby and after its promotion nothing from before is found", func(t *testing.T) {
		t.Parallel()
		// Files that were put back look like a restart and cannot be distinguished from one.
		server := testdb.Server(t, local.Options{InMemory: true, Fsync: true})
		testdb.Must(t, migrations.Up(t.Context(), server.URL("postgres")))
		db, err := postgres.Open(t.Context(), server.URL("postgres"), postgres.Options{Application: t.Name(), AllowReadOnly: true})
		testdb.Must(t, err)
		t.Cleanup(db.Close)
		f := newFixtureOn(t, db, newFake(t).url())
		restart := func() {
			testdb.Must(t, server.Restart(t.Context()))
		}
		f.keep(t, keyOf("key"), recordOf("ch_1"))
		f.awaitOtherState(t, restart)
		f.wantNotFound(t, keyOf("key"), "from before the restart")
		f.keep(t, keyOf("key"), recordOf("ch_1"))

		var folder string
		await.True(t, "the database answers", func() bool {
			return db.QueryRow(t.Context(), `show data_directory`).Scan(&folder) == nil
		})
		testdb.Must(t, os.WriteFile(filepath.Join(folder, "standby.signal"), nil, 0o600))
		restart()
		var standby bool
		await.True(t, "the standby answers", func() bool {
			return db.QueryRow(t.Context(), `select pg_is_in_recovery()`).Scan(&standby) == nil && standby
		})
		await.True(t, "the cache knows no state of a standby", func() bool { return f.State() == "" })
		f.wantNotFound(t, keyOf("key"), "on a standby")
		await.True(t, "the standby is promoted", func() bool {
			_, _ = db.Pool().Exec(t.Context(), `select pg_promote()`)
			return f.State() != ""
		})
		f.wantNotFound(t, keyOf("key"), "from before the promotion")
		f.keep(t, keyOf("key"), recordOf("ch_1"))
	})
}

func TestFind_findsNothingWhileTheStateIsUnknown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	record := f.keep(t, keyOf("key"), recordOf("ch_1"))

	f.exec(t, `revoke select on cache_secret from payonce_api`)
	await.True(t, "the failure is known", func() bool { return f.State() == "" })
	f.wantNotFound(t, keyOf("key"), "after a reading that failed")
	f.exec(t, `grant select on cache_secret to payonce_api`)
	f.wantFound(t, keyOf("key"), record)

	held := testdb.Begin(t, f.db.Pool(), `lock table cache_secret in access exclusive mode`)
	f.redis.answers(func(command []string) string {
		if command[0] == "GETRANGE" {
			f.ahead.Add(int64(3 * time.Second))
		}
		return ""
	})
	f.wantNotFound(t, keyOf("key"), "while Redis took longer than the reading counts")
	f.redis.answers(nil)
	f.wantNotFound(t, keyOf("key"), "two seconds after the last reading was sent")
	testdb.Must(t, held.Rollback(t.Context()))
	f.wantFound(t, keyOf("key"), record)

	keep := f.Find(t.Context(), keyOf("key"), record.Fingerprint).Keep
	f.Close()
	f.wantNotFound(t, keyOf("key"), "after Close")
	keep(record) // and nothing happens
}

// TestFind_readsTheStateOnAConnectionBesideThePool: requests that hold the whole pool do
// not end the cache, and a connection that was lost is replaced.
func TestFind_readsTheStateOnAConnectionBesideThePool(t *testing.T) {
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 1})
	f := newFixtureOn(t, db, newFake(t).url())
	record := f.keep(t, keyOf("key"), recordOf("ch_1"))
	f.exec(t, `
select pg_terminate_backend(pid)
  from pg_stat_activity
 where datname = current_database()
   and query like '%from cache_secret%'
   and pid <> pg_backend_pid()`)
	conn, err := f.api.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer conn.Release()
	f.awaitLogged(t, "without the state of the database", 1)
	f.wantFound(t, keyOf("key"), record)
}
