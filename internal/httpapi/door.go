package httpapi

import (
	"context"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

// Routes whose requests come under an idempotency key.
const (
	chargesPath = "/v1/charges"
	cancelPath  = "/v1/charges/:id/cancel"
	refundsPath = "/v1/charges/:id/refunds"
)

// knock is what a request is let in by, and the idempotency key that it comes under.
type knock struct {
	apiKey string
	key    idempotency.Key // without the scope, which nobody knows yet; zero if there is none
}

// entered is what is known of a request that knocked. The merchant has no ID if the
// API key opens nothing.
type entered struct {
	merchant merchants.Merchant
	looked   idempotency.KeyState
}

// newDoor lets in many at once, all of them with an idempotency key or none: who knocks
// at the same moment shares a round trip, in which the API key is looked up and, as its
// merchant, the idempotency key. Nothing is remembered: a key that is revoked or has
// expired is refused from the next request on.
//
// Who is held up by a lock on idempotency keys is let in without a look, and looks, and
// waits, behind the door.
func newDoor(db Database, most int) *postgres.Reads[knock, entered] {
	return postgres.NewReads(most, func(ctx context.Context, knocks []knock) ([]entered, error) {
		all, err := enter(ctx, db, knocks)
		if !postgres.IsLockTimeout(err) || knocks[0].key == (idempotency.Key{}) {
			return all, err
		}
		for i := range knocks {
			knocks[i].key = idempotency.Key{}
		}
		return enter(ctx, db, knocks)
	})
}

func enter(ctx context.Context, db Database, knocks []knock) ([]entered, error) {
	all := make([]entered, len(knocks))
	of := map[string][]*entered{} // by API key
	for i, k := range knocks {
		all[i].looked.Key = k.key
		of[k.apiKey] = append(of[k.apiKey], &all[i])
	}
	var reads []postgres.Read
	for apiKey, same := range of {
		reads = append(reads, merchants.Entering(apiKey, &same[0].merchant))
		var looks []*idempotency.KeyState
		for _, e := range same {
			if e.looked.Key != (idempotency.Key{}) {
				looks = append(looks, &e.looked)
			}
		}
		if len(looks) > 0 {
			reads = append(reads, idempotency.ReadKeys(looks))
		}
	}
	err := db.Read(ctx, reads...)
	for _, same := range of {
		for _, e := range same[1:] {
			e.merchant = same[0].merchant
		}
	}
	return all, err
}

// keyAtTheDoor is the key that a request will be found to come under, or none where
// that is seen later only. Nothing depends on it but what is asked when.
func (a *API) keyAtTheDoor(c echo.Context) idempotency.Key {
	if c.Request().Method != http.MethodPost || !slices.Contains([]string{chargesPath, cancelPath, refundsPath}, c.Path()) ||
		a.NaturalKeys || a.Intake.Keys.Cache != nil {
		return idempotency.Key{}
	}
	key, err := givenKey(c)
	if err != nil {
		return idempotency.Key{}
	}
	return idempotency.Key{Operation: operation(c), Value: key}
}
