package outbox

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
)

// rowsOf are the rows of a page behind a position, each with a payload of that many bytes.
type rowsOf struct {
	behind, messages, bytes int
	read                    int
}

func (r *rowsOf) Next() bool { r.read++; return r.read < r.messages }

func (*rowsOf) Err() error { return nil }

func (r *rowsOf) Scan(into ...any) error {
	payload := []byte(strings.Repeat("x", r.bytes))
	for i, value := range []any{int64(r.behind + r.read + 1), "7", "id", payload, []byte("{}"), "7", int64(r.behind)} {
		reflect.ValueOf(into[i]).Elem().Set(reflect.ValueOf(value))
	}
	return nil
}

// TestPaceOfAReader: only what is full is followed at once, where several came others
// are waited for, and of each page it is told once, whatever became of it.
func TestPaceOfAReader(t *testing.T) {
	t.Parallel()
	told, now := 0, time.Now()
	r := &reader{
		told: func() { told++ }, now: func() time.Time { return now },
		errors: wsql.NewDefaultBackoffManager(pollInterval, retryInterval),
	}
	for _, look := range []struct {
		name  string
		after time.Duration // the look before
		page  *rowsOf       // nil: it found nothing
		err   error
		pause time.Duration
	}{
		{"nothing there", 0, nil, nil, pollInterval},
		{"several, the first ones", time.Hour, &rowsOf{behind: 0, messages: several}, nil, gatherInterval},
		{"a message", time.Hour, &rowsOf{behind: 8, messages: 1}, nil, pollInterval},
		{"few", time.Millisecond, &rowsOf{behind: 9, messages: several - 1}, nil, pollInterval},
		{"several in a while", 2 * gatherInterval, &rowsOf{behind: 16, messages: several}, nil, gatherInterval},
		{"half of a company soon", gatherInterval / 5, &rowsOf{behind: 24, messages: company / 2}, nil, 2 * gatherInterval / 5},
		{"ten companies soon", gatherInterval / 5, &rowsOf{behind: 40, messages: 10 * company}, nil, gatherInterval / 50},
		{"almost a page in a while", time.Minute, &rowsOf{behind: 360, messages: pageMessages - 1}, nil, gatherInterval},
		{"a page", time.Minute, &rowsOf{behind: 859, messages: pageMessages}, nil, 0},
		{"nothing behind it", 0, nil, nil, pollInterval},
		{"few messages and many bytes", time.Minute, &rowsOf{behind: 1359, messages: 2, bytes: pageBytes / 3}, nil, 0},
		{"a page that is refused", 0, &rowsOf{behind: 1361, messages: 8}, errors.New("planted"), retryInterval},
		{"half of it, which has more behind it", retryInterval, &rowsOf{behind: 1361, messages: 4}, nil, 0},
		{"the rest", time.Minute, &rowsOf{behind: 1365, messages: 4}, nil, pollInterval},
		{"no server", 0, nil, errors.New("planted"), retryInterval},
	} {
		before := told
		now = now.Add(look.after)
		if look.page != nil {
			if _, err := r.UnmarshalMessage(look.page); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.HandleError(watermill.NopLogger{}, look.page == nil, look.err); got != look.pause {
			t.Errorf("%s: it waits for %v, should be %v", look.name, got, look.pause)
		}
		want := 0
		if look.page != nil {
			want = 1
		}
		if told-before != want {
			t.Errorf("%s: told %d times, should be %d", look.name, told-before, want)
		}
	}
}
