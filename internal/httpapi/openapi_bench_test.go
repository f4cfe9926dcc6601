package httpapi_test

import (
	"bytes"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// BenchmarkBody weighs ways to judge a body against what they are beside of: the
// strict reading of the same body, and a round trip to PostgreSQL. The figures are
// in docs/decisions.md.
func BenchmarkBody(b *testing.B) {
	request := []byte(body("items", items(2), "metadata", `{"a":"b"}`))
	charge, err := httpapi.ReadCharge(request)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := httpapi.ReadCharge(request); err != nil {
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
