package httpapi

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bojanz/currency"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/intake"
)

// Bounds of a request.
const (
	maxString        = 255 // characters
	maxItems         = 100
	maxQuantity      = 1_000_000
	maxMetadata      = 20
	maxMetadataValue = 500  // characters
	maxURL           = 2048 // bytes
	lastYear         = 9999 // that no time reaches
)

// checker collects what is wrong with a request.
type checker struct {
	fields     []fieldError
	keepsCards bool
}

func (k *checker) refuse(pointer, detail string) {
	k.fields = append(k.fields, fieldError{Pointer: pointer, Detail: detail})
}

// id checks an identifier that the merchant chooses.
func (k *checker) id(pointer, value string, required bool, longest int) {
	switch {
	case required && value == "":
		k.refuse(pointer, "is required")
	case utf8.RuneCountInString(value) > longest:
		k.refuse(pointer, fmt.Sprintf("is longer than %d characters", longest))
	}
}

// text checks what people write, which is no place for a card number.
func (k *checker) text(pointer, value string, required bool, longest int) {
	k.id(pointer, value, required, longest)
	if !k.keepsCards && holdsCard(value) {
		k.refuse(pointer, "looks like a card number")
	}
}

// validate checks a charge request against the bounds of the contract.
func (a *API) validate(r intake.Charge) error {
	k := checker{keepsCards: a.KeepsCardNumbers}
	k.id("/order_id", r.OrderID, true, maxString)
	k.text("/payment_method", r.PaymentMethod, true, maxString)
	k.text("/customer", r.Customer, false, maxString)
	k.text("/description", r.Description, false, maxString)
	k.amount(r.Amount, domain.Currency(r.Currency).Increment())
	if r.Currency == "" || !currency.IsValid(r.Currency) { // the library takes "" for valid
		k.refuse("/currency", "is not an ISO 4217 code in upper case")
	}
	k.items(r.Items)
	k.metadata(r.Metadata)
	if value := r.ReturnURL; value != nil { // where the provider sends the customer
		to, err := url.Parse(*value)
		if err != nil || !isReference(*value, maxURL) || to.Scheme != "https" || to.Hostname() == "" || to.User != nil {
			k.refuse("/return_url", "is no https URL of at most 2048 ASCII characters with a host and without credentials")
		}
	}
	if value := r.ExpiresAt; value != nil { // whether it has passed is decided by the database's clock
		at, err := time.Parse(time.RFC3339, *value)
		if err != nil || len(*value) > maxString || at.UTC().Year() >= lastYear {
			k.refuse("/expires_at", "is no time as in RFC 3339, such as 2026-11-26T16:40:00Z, before the year 9999")
		}
	}
	return k.verdict()
}

// badIncrement is what is wrong with an amount that the provider cannot move.
const badIncrement = "is not a multiple of the least amount that can be moved: 10 minor units of BHD, JOD, KWD, OMR and TND, 100 of MGA"

// validateRefund checks a refund request. Whether so much is left, and can be moved in
// the charge's currency, is decided on the charge.
func (a *API) validateRefund(r intake.Refund) error {
	k := checker{keepsCards: a.KeepsCardNumbers}
	if r.Amount != nil {
		k.amount(*r.Amount, 1)
	}
	k.text("/reason", r.Reason, false, maxString)
	return k.verdict()
}

func (k *checker) verdict() error {
	if len(k.fields) > 0 {
		return invalid(k.fields...)
	}
	return nil
}

func (k *checker) amount(minorUnits, step int64) {
	switch {
	case minorUnits < domain.MinAmount || minorUnits > domain.MaxAmount:
		k.refuse("/amount", "is not between 1 and 1000000000000 minor units")
	case minorUnits%step != 0:
		k.refuse("/amount", badIncrement)
	}
}

func (k *checker) items(items []domain.Item) {
	if len(items) > maxItems {
		k.refuse("/items", "has more than 100 items")
		return
	}
	seen := make(map[string]bool, len(items))
	for i, item := range items {
		pointer := "/items/" + strconv.Itoa(i)
		k.id(pointer+"/sku", item.SKU, true, maxString)
		if item.SKU != "" && seen[item.SKU] {
			k.refuse(pointer+"/sku", "repeats an earlier item: add up the quantities")
		}
		seen[item.SKU] = true
		if item.Quantity < 1 || item.Quantity > maxQuantity {
			k.refuse(pointer+"/quantity", "is not between 1 and 1000000")
		}
	}
}

func (k *checker) metadata(pairs map[string]string) {
	if len(pairs) > maxMetadata {
		k.refuse("/metadata", "has more than 20 pairs")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		switch {
		case utf8.RuneCountInString(name) > maxMetadataValue:
			k.refuse("/metadata", "has a name longer than 500 characters")
		case !k.keepsCards && holdsCard(name):
			k.refuse("/metadata", "has a name that looks like a card number")
		default:
			k.text(string(jsontext.Pointer("/metadata").AppendToken(name)), pairs[name], false, maxMetadataValue)
		}
	}
}

// networks are those of cards in use: the prefixes of their numbers, from first to last, and
// how many digits a number has.
var networks = []struct {
	first, last       string
	shortest, longest int
}{
	{"4", "4", 16, 16}, {"4", "4", 19, 19}, // Visa
	{"51", "55", 16, 16}, {"2221", "2720", 16, 16}, // Mastercard
	{"34", "34", 15, 15}, {"37", "37", 15, 15}, // American Express
	{"6011", "6011", 16, 19}, {"644", "649", 16, 19}, {"65", "65", 16, 19}, // Discover
	{"300", "305", 14, 14}, {"36", "36", 14, 14}, {"38", "38", 14, 14}, // Diners Club
	{"3528", "3589", 16, 19}, // JCB
	{"62", "62", 16, 19},     // UnionPay
}

const longestCard = 19 // digits

// holdsCard reports whether a text holds what may be a card number: the digits of a network,
// in a row or with single spaces, tabs or dashes of any kind between them, that pass Luhn's check, and no letter
// or digit before or behind them.
func holdsCard(s string) bool {
	before := ' '
	for i, r := range s {
		if isDigit(r) && !isWord(before) && startsWithCard(s[i:]) {
			return true
		}
		before = r
	}
	return false
}

func startsWithCard(s string) bool {
	digits, separated := make([]byte, 0, longestCard), false
	for i, r := range s {
		switch {
		case (r == '\t' || unicode.In(r, unicode.Zs, unicode.Pd)) && !separated: // as people paste them
			separated = true
			continue
		case !isDigit(r) || len(digits) == longestCard:
			return false
		}
		digits, separated = append(digits, byte(r)), false
		if next, _ := utf8.DecodeRuneInString(s[i+1:]); !isWord(next) && isCard(string(digits)) {
			return true
		}
	}
	return false
}

func isCard(digits string) bool {
	for _, n := range networks {
		if n.shortest <= len(digits) && len(digits) <= n.longest && n.first <= digits[:len(n.first)] && digits[:len(n.last)] <= n.last {
			return luhn(digits)
		}
	}
	return false
}

// luhn is the check of ISO/IEC 7812: every second digit from the right is doubled, and the
// digits of it all add up to a multiple of ten.
func luhn(digits string) bool {
	sum := 0
	for i, d := range digits {
		n := int(d - '0')
		if (len(digits)-i)%2 == 0 {
			n *= 2
		}
		sum += n/10 + n%10
	}
	return sum%10 == 0
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
