package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Limits bound what callers can use of one process. Several processes allow the sum. Zero
// is no limit.
type Limits struct {
	// PerSecond is how many requests a merchant may send in a second, replays and refusals
	// included, and after a pause as many at once.
	PerSecond int
	// InFlight is how many requests are in flight, most of which wait for a connection to
	// the database. One more is refused at once: it would only wait for its time-out.
	InFlight int
	// PerMerchant is how many of them are of one merchant.
	PerMerchant int
	// Authenticating is how many API keys that were not valid lately are read at a time,
	// which is what a caller without a key can use of the database. API keys that were
	// share batches of reads, of which as many are in flight.
	Authenticating int
	// Auditing is how many audits are in flight, one of each merchant. Each holds a
	// connection while it reads its merchant's tables.
	Auditing int
}

var (
	// errRate refuses a request of a merchant that has sent too many.
	errRate = errors.New("the merchant has sent too many requests")
	// errBusy refuses a request while too many others are in flight.
	errBusy = errors.New("too many requests are in flight")
)

// limits are Limits in use.
type limits struct {
	rates    rates
	work     *admission // requests, by merchant
	unsigned *admission // provider events whose bodies are being read
	unknown  *admission // reads of API keys that were not valid lately
	known    *admission // reads of API keys that were, by merchant
	audits   *admission // by merchant
	events   *admission // commits of provider events
}

func newLimits(l Limits) *limits {
	return &limits{
		rates:    rates{perSecond: l.PerSecond, of: map[string]*rate.Limiter{}},
		work:     newAdmission(l.InFlight, l.PerMerchant, 0),
		unsigned: newAdmission(l.InFlight, 0, 0),
		unknown:  newAdmission(l.InFlight, 0, l.Authenticating),
		known:    newAdmission(l.InFlight, l.PerMerchant, 0),
		audits:   newAdmission(l.Auditing, min(l.Auditing, 1), 0),
		events:   newAdmission(0, 0, eventCommits),
	}
}

// admission lets a bounded number of requests in: most in all, and share of each merchant.
// One more is refused with errBusy. If it has slots, those that are let in wait for one.
type admission struct {
	most, share int                 // zero is no limit
	slots       *semaphore.Weighted // nil is no limit

	mu  sync.Mutex
	all int
	of  map[string]int // without those that have none
}

func newAdmission(most, share, slots int) *admission {
	a := &admission{most: most, share: share, of: map[string]int{}}
	if slots > 0 {
		a.slots = semaphore.NewWeighted(int64(slots))
	}
	return a
}

// enter lets a request of a merchant in until leave is called. Errors: errBusy, and that of
// a context that ends while the request waits for a slot.
func (a *admission) enter(ctx context.Context, merchant string) (leave func(), err error) {
	if !a.count(merchant) {
		return nil, errBusy
	}
	if a.slots == nil {
		return func() { a.uncount(merchant) }, nil
	}
	if err := a.slots.Acquire(ctx, 1); err != nil {
		a.uncount(merchant)
		return nil, context.Cause(ctx)
	}
	return func() { a.slots.Release(1); a.uncount(merchant) }, nil
}

func (a *admission) count(merchant string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.most > 0 && a.all >= a.most || a.share > 0 && a.of[merchant] >= a.share {
		return false
	}
	a.all++
	a.of[merchant]++
	return true
}

func (a *admission) uncount(merchant string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.of[merchant]--; a.of[merchant] == 0 {
		delete(a.of, merchant)
	}
}

// rates are the merchants' rates. They hold one entry for each merchant that was
// authenticated.
type rates struct {
	perSecond int

	mu sync.Mutex
	of map[string]*rate.Limiter
}

// allow reports whether a merchant may send one more request now, and counts it.
func (r *rates) allow(merchant string, now time.Time) bool {
	if r.perSecond <= 0 {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.of[merchant]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(r.perSecond), r.perSecond)
		r.of[merchant] = l
	}
	return l.AllowN(now, 1)
}

// limitWork bounds the requests in flight. It reads their bodies before, so that a slow
// sender holds no slot. Requests outside /v1, such as health, are not counted.
func (a *API) limitWork(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, "/v1/") {
			return next(c)
		}
		merchant := merchantOf(c).ID
		ctx := c.Request().Context()
		if isEvent(c) {
			merchant = stripePath // no merchant has this id
			if err := a.readUnsigned(c); err != nil {
				return err
			}
		} else {
			readBody(c)
		}
		leave, err := a.limits.work.enter(ctx, merchant)
		if err != nil {
			return err
		}
		defer leave()
		return next(c)
	}
}

// readUnsigned reads the body of a provider event, which may be anyone's.
func (a *API) readUnsigned(c echo.Context) error {
	leave, err := a.limits.unsigned.enter(c.Request().Context(), "")
	if err != nil {
		c.Response().Header().Set(echo.HeaderConnection, "close") // else the answer waits for the body
		return err
	}
	defer leave() // also if the body panics
	readBody(c)
	return nil
}

const bodyKey = "body" // in echo's context

// received is the body of a request, or why it could not be read.
type received struct {
	body []byte
	err  error
}

// readBody reads the body of a POST to its end or to the size that it may have.
func readBody(c echo.Context) {
	if c.Request().Method == http.MethodPost {
		body, err := io.ReadAll(c.Request().Body)
		c.Set(bodyKey, received{body, err})
	}
}

// bodyOf is what readBody has read.
func bodyOf(c echo.Context) ([]byte, error) {
	r, _ := c.Get(bodyKey).(received)
	var large *http.MaxBytesError
	switch {
	case errors.As(r.err, &large):
		return nil, errTooLarge
	case r.err != nil:
		return nil, errMalformed.because("the body could not be read to its end")
	}
	return r.body, nil
}
