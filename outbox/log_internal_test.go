package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testrun"
)

func TestReader_boundsItsLogWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &await.Log{}
		r := newReader("g", Options{Log: slog.New(slog.NewTextHandler(log, nil))})
		r.done = t.Context()
		away := func(d time.Duration) {
			for began := time.Now(); time.Since(began) < d; {
				r.HandleError(bounded{Logger(r.log), r}, true, errors.New("connection refused"))
			}
		}
		away(90 * time.Second)
		r.HandleError(bounded{Logger(r.log), r}, true, nil)
		away(time.Second) // within the minute of the last line
		lines := regexp.MustCompile(`level=.*`).FindAllString(log.String(), -1)
		failed := func(n int) string {
			return fmt.Sprintf(`level=ERROR msg="delivery from the outbox failed and is retried" consumer_group=g failures=%d error="connection refused"`, n)
		}
		works := `level=INFO msg="delivery from the outbox works again" consumer_group=g failures=900`
		testrun.Same(t, "lines", []string{failed(1), failed(601), works, failed(1)}, lines)
	})
}
