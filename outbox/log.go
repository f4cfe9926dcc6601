package outbox

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Logger hands Watermill's lines to slog. What Watermill calls info is debug here.
//
// It keeps one value for each key. Watermill's SQL subscriber adds the last error to
// its logger on each retry, and its own adapter would keep them all: each line would
// be longer than the one before, for as long as the database is away.
func Logger(log *slog.Logger) watermill.LoggerAdapter { return logger{log: log} }

type logger struct {
	log    *slog.Logger
	fields watermill.LogFields
	errors *failures // nil: each error is a line
}

func (l logger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	l.fields = l.fields.Add(fields)
	return l
}

func (l logger) Error(msg string, err error, fields watermill.LogFields) {
	if l.errors == nil {
		l.write(slog.LevelError, msg, fields.Add(watermill.LogFields{"error": err}))
	} else if n := l.errors.failed(); n > 0 {
		l.write(slog.LevelError, msg, fields.Add(watermill.LogFields{"error": err, "failures": n}))
	}
}

func (l logger) Info(msg string, fields watermill.LogFields) { l.write(slog.LevelDebug, msg, fields) }

func (l logger) Debug(msg string, fields watermill.LogFields) { l.write(slog.LevelDebug, msg, fields) }

func (l logger) Trace(msg string, fields watermill.LogFields) {
	l.write(watermill.LevelTrace, msg, fields)
}

func (l logger) write(level slog.Level, msg string, fields watermill.LogFields) {
	ctx := context.Background() // Watermill hands over none
	if !l.log.Enabled(ctx, level) {
		return
	}
	all := l.fields.Add(fields)
	attrs := make([]slog.Attr, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		attrs = append(attrs, slog.Any(key, all[key]))
	}
	l.log.LogAttrs(ctx, level, msg, attrs...) //nolint:sloglint // the words are Watermill's
}

// logEvery is the time between two lines about a failure that repeats.
const logEvery = time.Minute

// failures bounds the log of work that is retried until it succeeds: the first failure is
// logged, then one line a minute, and one line when the work succeeds. It is safe for
// concurrent use.
type failures struct {
	now func() time.Time

	mu     sync.Mutex
	count  int // since the work last succeeded
	logged time.Time
	recent bool // something failed since the last attempt ended
}

// failed counts a failure. It returns how many there were since the work last succeeded if
// this one is to be logged, else 0.
func (f *failures) failed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recent = true
	f.count++
	now := f.now()
	if f.count > 1 && now.Sub(f.logged) < logEvery {
		return 0
	}
	f.logged = now
	return f.count
}

// ended is called at the end of each attempt. It returns the number of failures that
// were before it if the attempt is the first that succeeded, else 0. An attempt
// during which something was counted as failed did not succeed.
func (f *failures) ended(succeeded bool) (before int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if succeeded && !f.recent {
		before, f.count = f.count, 0
	}
	f.recent = false
	return before
}
