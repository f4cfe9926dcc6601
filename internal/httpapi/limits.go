package httpapi

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"
)

// Limits bound what callers can use of one process. Several processes allow the sum. Zero
// is no limit, and 20 for Authenticating.
type Limits struct {
	// PerSecond is how many requests a merchant may send in a second, replays and refusals
	// included, and after a pause as many at once.
	PerSecond int
	// InFlight is how many requests are in flight, most of which wait for a connection to
	// the database. One more is refused at once: it would only wait for its time-out. A quarter
	// of them is for reads alone, which go on while commits hang. A merchant may have half, those
	// whose API keys were not valid lately have half until these are read, and a quarter may wait
	// for a charge.
	InFlight int
	// Authenticating is how many reads of API keys are in flight, of those that were not
	// valid lately and of the others each: what a caller without a key can use of the
	// database.
	Authenticating int
	// AnswerBytes is how many bytes of answers are being sent, of one merchant half of them.
	AnswerBytes int
	// Guesses is how many API keys that are not valid an address may send at once. After them
	// it may send ten in a minute.
	Guesses int
}

// guessInterval is the time after which an address may send one more wrong API key.
const guessInterval = 6 * time.Second

// limits are Limits in use.
type limits struct {
	merchants *rates    // requests, by merchant
	guesses   *rates    // API keys that are not valid, by client network
	work      *capacity // requests, by merchant, also while their API keys are read
	writes    *capacity // those of work that are no reads
	unsigned  *capacity // provider events whose bodies are being read, by client network
	waits     *capacity // requests that wait for a charge, by merchant
	answers   *capacity // bytes of answers that are being sent, by merchant
}

func newLimits(l Limits) *limits {
	share := l.InFlight / 2
	return &limits{
		merchants: newRates(rate.Limit(l.PerSecond), l.PerSecond),
		guesses:   newRates(rate.Every(guessInterval), l.Guesses),
		work:      newCapacity(l.InFlight, share),
		writes:    newCapacity(l.InFlight-l.InFlight/4, share-share/4),
		unsigned:  newCapacity(maxEvents, maxEvents/4),
		waits:     newCapacity(l.InFlight/4, share/4),
		answers:   newCapacity(l.AnswerBytes, l.AnswerBytes/2),
	}
}

// capacity bounds the requests in flight, or their bytes: most in all, and share of each
// merchant.
type capacity struct {
	most, share int // zero is no limit

	mu  sync.Mutex
	all int
	of  map[string]int // without those that have none
}

func newCapacity(most, share int) *capacity {
	return &capacity{most: most, share: share, of: map[string]int{}}
}

// take counts n requests, or bytes, of a merchant if there may be so many more. Below zero it releases them.
func (a *capacity) take(merchant string, n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > 0 && (a.most > 0 && a.all+n > a.most || a.share > 0 && a.of[merchant]+n > a.share) {
		return false
	}
	a.all += n
	if a.of[merchant] += n; a.of[merchant] == 0 {
		delete(a.of, merchant)
	}
	return true
}

// within does something that counts as n requests, or bytes, of a merchant, also if it panics. One more than there may be
// is refused with errBusy.
func (a *capacity) within(merchant string, n int, do func() error) error {
	if !a.take(merchant, n) {
		return errBusy
	}
	defer a.take(merchant, -n)
	return do()
}

// rates bound how often something is done, by name.
type rates struct {
	every rate.Limit
	burst int // zero is no limit
	of    *lru.Cache[string, *rate.Limiter]
}

const remembered = 10_000 // API keys, and names of each rate: about two megabytes

func newRates(every rate.Limit, burst int) *rates {
	of, _ := lru.New[string, *rate.Limiter](remembered) // it refuses a size below one alone
	return &rates{every: every, burst: burst, of: of}
}

// limiter is that of a name. The least recently used one is forgotten first: a name that did nothing
// for long has its burst anyway.
func (r *rates) limiter(name string) *rate.Limiter {
	if known, ok := r.of.Get(name); ok {
		return known
	}
	fresh := rate.NewLimiter(r.every, r.burst)
	known, _, _ := r.of.PeekOrAdd(name, fresh)
	return cmp.Or(known, fresh)
}

// allow reports whether a name may do one more now, and counts it if so.
func (r *rates) allow(name string, now time.Time) bool {
	return r.burst <= 0 || r.limiter(name).AllowN(now, 1)
}

// used reports whether a name may do no more now.
func (r *rates) used(name string, now time.Time) bool {
	return r.burst > 0 && r.limiter(name).TokensAt(now) < 1
}

// limitWork bounds the requests in flight. It reads their bodies before, so that a slow
// sender holds no slot. Requests outside /v1, such as health, are not counted.
func (a *API) limitWork(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, "/v1/") {
			return next(c)
		}
		merchant, read := merchantOf(c).ID, readBody
		if isEvent(c) {
			merchant, read = stripePath, a.readUnsigned // no merchant has this id
		}
		if err := read(c); err != nil {
			return err
		}
		work := func() error {
			return a.limits.work.within(merchant, 1, func() error { return next(c) })
		}
		if c.Request().Method == http.MethodPost {
			return a.limits.writes.within(merchant, 1, work)
		}
		return work()
	}
}

// readUnsigned reads the body of a provider event whose sender is not known yet: soon, and few
// at a time from one network, so that slow senders do not keep the provider out.
func (a *API) readUnsigned(c echo.Context) error {
	// Also of one that is refused. Where it cannot be set, readTimeout counts.
	_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Now().Add(unsignedTime)) //nolint:forbidigo // a socket knows no other clock
	return a.limits.unsigned.within(network(exchangeOf(c).client), 1, func() error { return readBody(c) })
}

// readBody reads the body of a POST to its end or to the size that it may have.
func readBody(c echo.Context) (err error) {
	if c.Request().Method != http.MethodPost {
		return nil
	}
	exchangeOf(c).body, err = io.ReadAll(c.Request().Body)
	if err != nil && !errors.Is(err, echo.ErrStatusRequestEntityTooLarge) {
		err = errMalformed.because("the body could not be read to its end")
	}
	return err
}
