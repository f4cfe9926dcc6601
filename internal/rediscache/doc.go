// Package rediscache answers replays of stored answers from Redis, so that a
// storm of retries costs the database no look for the key. It is an
// idempotency.Cache and owns the table cache_secret.
//
// It promises that Redis can be stopped, flushed, corrupted, restored or taken
// over without one answer that differs from the database's:
//
//   - An entry holds a finished answer that the database has committed. It carries
//     an HMAC over scope, operation, key, fingerprint, answer and expiry, with a
//     secret that is in the database and not in Redis. What is not authentic is
//     not found.
//   - Expiry is inside the HMAC and is judged by the database's clock, whatever
//     Redis makes of its own.
//   - The names and seals of entries depend on a state of the database: system
//     identifier, timeline, start of the server, database and file of
//     idempotency_keys. After a failover, a restore, a restart or a truncate the
//     entries of before are not found.
//   - That state is read every second, and two seconds after the last reading was
//     sent, or at once when a reading fails, Redis is not asked at all. It is read
//     on a connection beside the pool, which requests that have taken the whole
//     pool cannot take.
//   - A reply that is longer than what was asked for, or of another kind, ends the
//     connection before room is made for it. A panic of the client is a failure of
//     Redis.
//   - Redis down or slow costs tens of milliseconds for the requests under way;
//     after three failures in a row it is left alone until it answers again.
//
// It does not promise to find anything, and without the database it finds nothing.
// A replay from Redis waits for a connection of the pool like any other request:
// the api looks up the API key in the database each time. Nor does the cache see,
// for up to two seconds, that a failover has lost an answer: a client can be told
// once more what was committed and then lost. Where the old primary still runs as
// one, that can take a minute, the life of the connection. Rows that somebody
// deletes by hand are replayed until their entries expire, an hour at most; change
// the secret to end that. Answers lie in Redis readable, their keys do not: Redis
// needs the same care as a database with orders in it.
package rediscache
