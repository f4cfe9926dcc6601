package httpapi_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
)

// numbered returns digits that begin with a prefix and pass Luhn's check.
func numbered(prefix string, digits int) string {
	number := prefix + strings.Repeat("0", digits-len(prefix)-1)
	sum := 0
	for i := range len(number) {
		d := int(number[len(number)-1-i] - '0')
		if i%2 == 0 {
			d = 2*d/10 + 2*d%10
		}
		sum += d
	}
	return number + strconv.Itoa((10-sum%10)%10)
}

func TestHoldsCard_knowsTheNetworksInUse(t *testing.T) {
	t.Parallel()
	lengths := map[string][]int{ // of each network's first and last prefixes, and of their neighbours
		"4": {16, 19}, "50": nil, "51": {16}, "55": {16}, "56": nil, "2220": nil, "2221": {16}, "2720": {16}, "2721": nil,
		"33": nil, "34": {15}, "35": nil, "37": {15}, "39": nil, "6010": nil, "6011": {16, 17, 18, 19}, "6012": nil,
		"643": nil, "644": {16, 17, 18, 19}, "649": {16, 17, 18, 19}, "65": {16, 17, 18, 19}, "66": nil,
		"299": nil, "300": {14}, "305": {14}, "306": nil, "36": {14}, "38": {14},
		"3527": nil, "3528": {16, 17, 18, 19}, "3589": {16, 17, 18, 19}, "3590": nil, "62": {16, 17, 18, 19}, "63": nil, "1": nil, "9": nil,
	}
	for prefix, want := range lengths {
		for digits := 12; digits <= 20; digits++ {
			number := numbered(prefix, digits)
			if got := httpapi.HoldsCard(number); got != slices.Contains(want, digits) {
				t.Errorf("%s, of %d digits: %v", number, digits, got)
			}
			last := (number[digits-1]-'0'+1)%10 + '0'
			if wrong := number[:digits-1] + string(last); httpapi.HoldsCard(wrong) {
				t.Errorf("%s fails Luhn's check", wrong)
			}
		}
	}
}

func TestHoldsCard_bySeparatorsAndNeighbours(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"4242 4242 4242 4242": true, "4242-4242-4242-4242": true, "4242 4242-42424242": true, "4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2": true,
		"4242 4242 4242 4242 12/30": true, "no. 1-4242-4242-4242-4242.": true, "(3782 822463 10005)": true, "_4242424242424242_": true,
		"4242424242424242,5555555555554444": true, "42424242-4242-4242-8242-abcdefabcdef": true,
		"pan4242424242424242": false, "4242424242424242x": false, "é4242424242424242": false, "14242424242424242": false, "4242424242424242 1": true,
		"4242  4242 4242 4242": false, "4242.4242.4242.4242": false, "4242_4242_4242_4242": false, "4242/4242/4242/4242": false,
		"4242 - 4242 4242 4242": false, "４２４２４２４２４２４２４２４２": false, "4242a4242b4242c4242": false, "": false,
	} {
		if got := httpapi.HoldsCard(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// Ordinary identifiers of digits are accepted wherever an identifier belongs, and nearly
// always where people write text.
func TestOrdinaryIdentifiers_areNoCardNumbers(t *testing.T) {
	t.Parallel()
	const each = 100_000
	var source *rand.ChaCha8
	var random *rand.Rand
	from, to := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2036, 1, 1, 0, 0, 0, 0, time.UTC)
	moment := func() time.Time { return from.Add(time.Duration(random.Int64N(int64(to.Sub(from))))) }
	snowflake := func(epoch int64) string {
		return strconv.FormatInt((moment().UnixMilli()-epoch)<<22|random.Int64N(1<<22), 10)
	}
	for name, draw := range map[string]func(n int) string{
		"a number from a sequence":         func(n int) string { return strconv.Itoa(1_000_000 + n) },
		"a day and a number of six digits": func(n int) string { return moment().Format("20060102") + fmt.Sprintf("%06d", n) },
		"a snowflake of Twitter":           func(int) string { return snowflake(1288834974657) },
		"an EAN-13 with dashes": func(int) string {
			return fmt.Sprintf("978-3-%06d-%02d-%d", random.IntN(1e6), random.IntN(100), random.IntN(10))
		},
		"milliseconds": func(int) string { return strconv.FormatInt(moment().UnixMilli(), 10) },
		"nanoseconds":  func(int) string { return strconv.FormatInt(moment().UnixNano(), 10) },
		"a UUID":       func(int) string { return uuid.Must(uuid.NewRandomFromReader(source)).String() },
	} {
		source = rand.NewChaCha8([32]byte{}) // the same numbers in each run
		random = rand.New(source)            //nolint:gosec // as above
		refused := 0
		for n := range each {
			id := draw(n)
			if err := httpapi.Validate(intake.Charge{
				OrderID: id, Amount: 1, Currency: "USD", PaymentMethod: "pm_1", Items: []domain.Item{{SKU: id, Quantity: 1}},
			}); err != nil {
				t.Fatalf("%s: %s is refused: %v", name, id, err)
			}
			if httpapi.HoldsCard(id) {
				refused++
			}
		}
		t.Logf("%s: %d of %d look like a card number in a text", name, refused, each)
		if refused > each/1000 {
			t.Errorf("%s: %d of %d look like a card number in a text", name, refused, each)
		}
	}
}
