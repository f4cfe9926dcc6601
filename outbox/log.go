package outbox

import (
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Logger hands Watermill's lines to slog. What Watermill calls info is debug here.
func Logger(log *slog.Logger) watermill.LoggerAdapter {
	return watermill.NewSlogLoggerWithLevelMapping(logged(log), map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
}

// logged is log, or the default logger.
func logged(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default()
	}
	return log
}

// bounded is a reader's logger, which bounds its errors, and has none after the reader's end.
type bounded struct {
	watermill.LoggerAdapter

	of *reader
}

func (b bounded) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return bounded{b.LoggerAdapter.With(fields), b.of}
}

func (b bounded) Error(msg string, err error, fields watermill.LogFields) {
	if b.of.done.Err() != nil || b.of.caller.Err() != nil {
		return
	}
	if n := b.of.failures.failed(); n > 0 {
		b.LoggerAdapter.Error(msg, err, fields.Add(watermill.LogFields{"failures": n}))
	}
}

// logEvery is the time between two lines about a failure that repeats.
const logEvery = time.Minute

// failures bounds the log of work that is retried until it succeeds: the first failure is
// logged, then one line a minute, and one line when the work succeeds.
type failures struct {
	count  int // since the work last succeeded
	logged time.Time
	recent bool // something failed since the last attempt ended
}

// failed counts a failure. It returns how many there were since the work last succeeded if
// this one is to be logged, else 0.
func (f *failures) failed() int {
	f.recent = true
	f.count++
	now := time.Now() //nolint:forbidigo // it decides only what is logged
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
	if succeeded && !f.recent {
		before, f.count = f.count, 0
	}
	f.recent = false
	return before
}
