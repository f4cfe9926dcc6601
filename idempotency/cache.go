package idempotency

import "context"

// Cache may answer replays of stored answers in place of the database. It is
// never asked whether a key is free: finding nothing means nothing, and so does
// every failure, which is why there is no error to return.
type Cache interface {
	// Find returns the record that is stored under the key, if the cache has it
	// for the very request with this fingerprint and it has not expired by the
	// database's clock. It takes tens of milliseconds at most.
	//
	// keep hands the cache what the database has stored under the key since: a
	// record that Look found, or that a Commit which returned nil has claimed. It
	// never waits and may do nothing. It is bound to the state of the database
	// that the cache knew before, so that an answer which is lost in a failover
	// between commit and keep is not kept for the database that comes after it.
	Find(ctx context.Context, key Key, fingerprint []byte) (record Record, found bool, keep func(Record))
}

// Recall asks a cache, or none where it is nil. Call it before the first Look of
// a request, and keep after a Look that found the key or after the commit that
// claimed it; keep is never nil, and need not be called.
//
// A record of another request, or an expired one, is not believed whatever the
// cache says: the database answers those.
func Recall(ctx context.Context, c Cache, key Key, request Request) (record Record, found bool, keep func(Record)) {
	if c == nil {
		return Record{}, false, func(Record) {}
	}
	record, found, stored := c.Find(ctx, key, request.Fingerprint)
	keep = func(record Record) {
		if !record.Expired {
			stored(record)
		}
	}
	if !found {
		return Record{}, false, keep
	}
	if _, err := record.Replay(request); err != nil {
		return Record{}, false, keep
	}
	return record, true, keep
}
