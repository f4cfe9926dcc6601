package idempotency_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
)

// rumour is a cache that says what it was told to say, whoever asks.
type rumour struct {
	record idempotency.Record
	found  bool
	kept   []idempotency.Record
}

func (c *rumour) Find(context.Context, idempotency.Key, []byte) (idempotency.Record, bool, func(idempotency.Record)) {
	return c.record, c.found, func(record idempotency.Record) { c.kept = append(c.kept, record) }
}

func TestRecall(t *testing.T) {
	t.Parallel()
	request := idempotency.Request{Fingerprint: []byte("fingerprint")}
	stored := idempotency.Record{Answer: theAnswer(), Fingerprint: request.Fingerprint, ExpiresAt: inAnHour()}
	anothers, expired, swept := stored, stored, stored
	anothers.Fingerprint = []byte("another")
	expired.Expired = true
	swept.Fingerprint = nil

	for _, test := range []struct {
		name  string
		cache idempotency.Cache
		found bool
	}{
		{"what the cache has is the answer", &rumour{record: stored, found: true}, true},
		{"nothing found is nothing known", &rumour{}, false},
		{"a record that was not found is none", &rumour{record: stored}, false},
		{"an answer to another request is not believed", &rumour{record: anothers, found: true}, false},
		{"nor one to no request", &rumour{record: swept, found: true}, false},
		{"nor one that has expired", &rumour{record: expired, found: true}, false},
		{"no cache knows nothing", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			record, found, keep := idempotency.Recall(t.Context(), test.cache, theKey(), request)
			want := idempotency.Record{}
			if test.found {
				want = stored
			}
			if diff := cmp.Diff(want, record); diff != "" || found != test.found {
				t.Errorf("found %v, want %v (-want +got):\n%s", found, test.found, diff)
			}
			keep(stored)
			keep(expired)
			if c, ok := test.cache.(*rumour); ok {
				if diff := cmp.Diff([]idempotency.Record{stored}, c.kept); diff != "" {
					t.Errorf("kept (-want +got):\n%s", diff)
				}
			}
		})
	}
}
