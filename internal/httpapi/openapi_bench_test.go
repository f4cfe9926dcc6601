package httpapi_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/ledger"
)

// BenchmarkBody weighs ways to judge a body against what they are beside of: the
// strict reading of the same body, and a round trip to PostgreSQL. The figures are
// in docs/decisions.md.
func BenchmarkBody(b *testing.B) {
	request := []byte(body("items", items(2), "metadata", `{"a":"b"}`))
	read := httpapi.NewReader().Charge
	charge, err := read(request)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := read(request); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("judged by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := httpapi.ValidateCharge(charge); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("judged by the schema", func(b *testing.B) {
		schema, err := theContract(b).Schema("/components/schemas/ChargeRequest")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(request))
			if err != nil {
				b.Fatal(err)
			}
			if err := schema.Validate(value); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("all JSON, beside a round trip to PostgreSQL", func(b *testing.B) { benchmarkJSON(b, read, request) })
	b.Run("a round trip to PostgreSQL", func(b *testing.B) {
		db := pgtest.Open(b)
		for b.Loop() {
			var one int
			if err := db.QueryRow(b.Context(), "select 1").Scan(&one); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// benchmarkJSON weighs all that is done with the JSON of a charge while it is accepted
// against the emptiest round trip, one after the other: reading it, judging it, its
// canonical form and fingerprint, deciding it, and writing the answer.
func benchmarkJSON(b *testing.B, read func([]byte) (intake.Charge, error), request []byte) {
	b.Helper()
	db := pgtest.Open(b)
	var ofJSON, ofRoundTrips time.Duration
	for b.Loop() {
		began := time.Now()
		var one int
		if err := db.QueryRow(b.Context(), "select 1").Scan(&one); err != nil {
			b.Fatal(err)
		}
		answered := time.Now()
		if err := throughJSON(read, request); err != nil {
			b.Fatal(err)
		}
		ofRoundTrips += answered.Sub(began)
		ofJSON += time.Since(answered)
	}
	b.ReportMetric(float64(ofJSON.Nanoseconds())/float64(b.N), "ns-JSON/op")
	b.ReportMetric(float64(ofJSON)/float64(ofRoundTrips), "JSON/round-trip")
}

func throughJSON(read func([]byte) (intake.Charge, error), request []byte) error {
	charge, err := read(request)
	if err != nil {
		return err
	}
	if err := httpapi.ValidateCharge(charge); err != nil {
		return err
	}
	canonical, err := json.Marshal(charge)
	if err != nil {
		return err
	}
	idempotency.Fingerprint([]byte("v1"), canonical)
	s := ledger.New("ch_1")
	events, err := domain.Decide(s.Charge, domain.RequestCharge{
		MerchantID: "acme", OrderID: charge.OrderID, Items: charge.Items, PaymentMethod: charge.PaymentMethod,
		Amount:      domain.Money{Amount: charge.Amount, Currency: domain.Currency(charge.Currency)},
		Description: charge.Description, Metadata: charge.Metadata,
	})
	if err != nil {
		return err
	}
	_, err = json.Marshal(domain.Fold(s.Charge, events...).View(time.Time{}))
	return err
}
