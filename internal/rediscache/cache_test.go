package rediscache_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/rediscache"
)

func TestFind(t *testing.T) {
	t.Parallel()

	t.Run("an answer that was kept is found byte for byte", func(t *testing.T) {
		f := newFixture(t)
		record := f.keep(t, keyOf("key"), recordOf("ch_1"))
		f.wantFound(t, keyOf("key"), record)
		newFixtureOn(t, f.db, f.redis.url()).wantFound(t, keyOf("key"), record) // another process finds it too

		for _, fingerprint := range []string{"another", "fingerprint ", "fingerprin", ""} {
			if got := f.Find(t.Context(), keyOf("key"), []byte(fingerprint)); got.Found || len(got.Record.Body) > 0 {
				t.Errorf("%q finds %+v", fingerprint, got)
			}
		}
		for _, key := range []idempotency.Key{
			{Scope: "globex", Operation: "POST /v1/charges", Value: "key"},
			{Scope: "acme", Operation: "POST /v1/refunds", Value: "key"},
			keyOf("KEY"),
			{Scope: "acmeP", Operation: "OST /v1/charges", Value: "key"},
		} {
			f.wantNotFound(t, key, "of another key")
		}
	})

	t.Run("each look-up is counted", func(t *testing.T) {
		f := newFixture(t)
		counted := func(want rediscache.Found) {
			t.Helper()
			if got := f.last.Load(); got != want {
				t.Errorf("counted %v, want %s", got, want)
			}
		}
		f.keep(t, numbered(1), recordOf("ch_1"))
		counted(rediscache.Hit)
		f.wantNotFound(t, numbered(2), "unknown")
		counted(rediscache.Miss)
		f.redis.answers(func([]string) string { return "$3\r\nbad\r\n" })
		f.wantNotFound(t, numbered(1), "damaged")
		counted(rediscache.Failed)
		f.redis.answers(func([]string) string { return "-ERR broken\r\n" })
		f.wantNotFound(t, numbered(1), "refused")
		counted(rediscache.Failed)
		f.Close()
		f.wantNotFound(t, numbered(1), "without the database's state")
		counted(rediscache.Failed)
	})

	t.Run("an expired answer is not found, though Redis keeps it", func(t *testing.T) {
		f := newFixture(t)
		living := f.keep(t, numbered(1), recordOf("ch_1"))
		await.True(t, "an answer that expires soon is found", func() bool {
			expiring := recordOf("ch_2")
			expiring.ExpiresAt = time.Now().Add(3 * time.Second)
			cached := f.Find(t.Context(), numbered(2), expiring.Fingerprint)
			if !cached.Found && cached.Keep != nil {
				cached.Keep(expiring)
			}
			return cached.Found
		})
		await.True(t, "it expires", func() bool { return !f.Find(t.Context(), numbered(2), []byte("fingerprint")).Found })
		f.wantFound(t, numbered(1), living)
		f.wantNotFound(t, numbered(2), "expired")
		if n := len(f.redis.all()); n != 2 {
			t.Errorf("there are %d entries", n)
		}
	})

	t.Run("what was never written is answered by the database", func(t *testing.T) {
		f := newFixture(t)
		known := f.keep(t, numbered(1), recordOf("ch_1"))
		f.redis.answers(func(command []string) string {
			if command[0] == "SET" {
				return "-OOM not allowed, with args beginning with: 'SET' '" + command[1] + "' 'ch_2'\r\n"
			}
			return ""
		})
		f.Find(t.Context(), keyOf("key"), nil).Keep(recordOf("ch_2"))
		f.awaitLogged(t, "OOM", 1)
		f.wantNotFound(t, keyOf("key"), "refused")
		f.wantFound(t, numbered(1), known)
		f.redis.answers(nil)
		f.wantFound(t, keyOf("key"), f.keep(t, keyOf("key"), recordOf("ch_2")))

		large := recordOf("ch_3")
		large.Body = make([]byte, 1<<20)
		f.Find(t.Context(), numbered(2), nil).Keep(large)
		f.wantNotFound(t, numbered(2), "large")
	})
}

func TestEntriesDoNotOutliveTheirKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i, test := range []struct{ keeps, least, most time.Duration }{
		{10 * time.Minute, 9 * time.Minute, 10 * time.Minute}, // as long as the key
		{168 * time.Hour, time.Hour, time.Hour},               // an hour at most
	} {
		record := recordOf("ch_1")
		record.ExpiresAt = time.Now().Add(test.keeps).Truncate(time.Second)
		f.keep(t, numbered(i), record)
		if life := f.redis.lastLife(); life < test.least || life > test.most {
			t.Errorf("a key of %v has an entry of %v", test.keeps, life)
		}
	}
}

func TestFind_refusesAForgedEntry(t *testing.T) {
	t.Parallel()

	t.Run("an entry of which one bit is wrong is not found", func(t *testing.T) {
		f := newFixture(t)
		record := f.keep(t, keyOf("order 17"), recordOf("ch_1"))
		for name, value := range f.redis.all() {
			for _, secret := range []string{"acme", "POST /v1/charges", "order 17", "ch_1", record.ContentType, string(record.Fingerprint)} {
				if strings.Contains(name+value, secret) {
					t.Errorf("the entry shows %q: %s is %q", secret, name, value)
				}
			}
			for i := range len(value) {
				changed := []byte(value)
				changed[i] ^= 1 << (i % 8)
				f.redis.put(name, string(changed))
				f.wantNotFound(t, keyOf("order 17"), "changed")
			}
			for _, bad := range []string{"", "x", value[:31], value[:32], value[:len(value)-1], value + " ", value + strings.Repeat("x", 1<<20)} {
				f.redis.put(name, bad)
				f.wantNotFound(t, keyOf("order 17"), "cut or lengthened")
			}
			f.redis.put(name, value)
		}
		f.wantFound(t, keyOf("order 17"), record)
		f.awaitLogged(t, "damaged or forged", 1)
	})

	t.Run("the entry of another key is not found", func(t *testing.T) {
		f := newFixture(t)
		f.keep(t, numbered(1), recordOf("ch_1"))
		f.keep(t, numbered(2), recordOf("ch_2"))
		entries := f.redis.all()
		names := slices.Collect(maps.Keys(entries))
		f.redis.put(names[0], entries[names[1]])
		f.redis.put(names[1], entries[names[0]])
		f.wantNotFound(t, numbered(1), "swapped")
		f.wantNotFound(t, numbered(2), "swapped")
	})

	t.Run("an entry from before the secret was changed is not found", func(t *testing.T) {
		f := newFixture(t)
		f.keep(t, keyOf("key"), recordOf("ch_1"))
		f.awaitOtherState(t, func() { f.exec(t, `update cache_secret set secret = sha256(uuid_send(gen_random_uuid()))`) })
		f.keep(t, numbered(1), recordOf("ch_2"))
		f.wantNotFound(t, keyOf("key"), "from before")
	})
}
