package rediscache_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
)

// zeroFields are the fields of a struct that hold nothing.
func zeroFields(v any) []string {
	var names []string
	s := reflect.ValueOf(v)
	for i := range s.NumField() {
		if s.Field(i).IsZero() {
			names = append(names, s.Type().Field(i).Name)
		}
	}
	return names
}

func TestForged(t *testing.T) {
	t.Parallel()

	t.Run("an entry of which one bit is wrong is not found", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		record := w.kept(t, theKey(), "ch_1")
		name, value := redis.only(t)
		for i := range len(value) {
			bytes := []byte(value)
			bytes[i] ^= 1 << (i % 8)
			redis.put(name, string(bytes))
			if w.finds(t, theKey()) {
				t.Errorf("it is found with byte %d of %d changed", i, len(value))
			}
		}
		redis.put(name, value)
		w.wantFound(t, theKey(), record)
		await.True(t, "the forgery is logged", func() bool { return w.said.count("entries") > 0 })
		if strings.Contains(w.said.String(), theKey().Value) {
			t.Errorf("the key is logged: %s", w.said)
		}
	})

	t.Run("nor is one that was cut or lengthened", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		w.kept(t, theKey(), "ch_1")
		name, value := redis.only(t)
		for _, bad := range []string{"", "x", value[:31], value[:32], value[:len(value)-1], value + " ", value + strings.Repeat("x", 1<<20)} {
			redis.put(name, bad)
			if w.finds(t, theKey()) {
				t.Errorf("it is found with %d of %d bytes", len(bad), len(value))
			}
		}
	})

	t.Run("nor the entry of another key", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		one, two := w.kept(t, numbered(1), "ch_1"), w.kept(t, numbered(2), "ch_2")
		swap := func() {
			t.Helper()
			var names []string
			entries := redis.all()
			for name := range entries {
				names = append(names, name)
			}
			if len(names) != 2 {
				t.Fatalf("there are %d entries", len(names))
			}
			redis.put(names[0], entries[names[1]])
			redis.put(names[1], entries[names[0]])
		}
		swap()
		if w.finds(t, numbered(1)) || w.finds(t, numbered(2)) {
			t.Error("an answer is found under the other's key")
		}
		swap()
		w.wantFound(t, numbered(1), one)
		w.wantFound(t, numbered(2), two)
	})

	t.Run("nor one of another kind", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		record := w.kept(t, theKey(), "ch_1")
		redis.does(func(command []string) string {
			if command[0] == "GETRANGE" {
				return "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
			}
			return ""
		})
		if w.finds(t, theKey()) {
			t.Error("it is found")
		}
		redis.does(nil)
		w.wantFound(t, theKey(), record)
	})

	t.Run("nor one from before the secret was changed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		w.kept(t, theKey(), "ch_1")
		w.exec(t, `update cache_secret set secret = sha256(uuid_send(gen_random_uuid()))`)
		await.True(t, "it is not found", func() bool { return !w.finds(t, theKey()) })
		w.kept(t, numbered(1), "ch_2")
		if w.finds(t, theKey()) {
			t.Error("it is found again")
		}
	})
}
