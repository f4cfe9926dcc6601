package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bojanz/currency"
	"github.com/google/uuid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/intake"
)

// Bounds of a request.
const (
	maxString        = 255 // characters
	maxItems         = 100
	maxQuantity      = 1_000_000
	maxMetadata      = 20
	maxMetadataValue = 500 // characters
)

// checker collects what is wrong with a request.
type checker struct {
	fields []fieldError
	nul    bool
}

func (k *checker) refuse(pointer, detail string) {
	k.fields = append(k.fields, fieldError{Pointer: pointer, Detail: detail})
}

func (k *checker) text(pointer, value string, required bool, longest int) {
	k.nul = k.nul || hasNUL(value)
	switch {
	case required && value == "":
		k.refuse(pointer, "is required")
	case utf8.RuneCountInString(value) > longest:
		k.refuse(pointer, fmt.Sprintf("is longer than %d characters", longest))
	case holdsCard(value):
		k.refuse(pointer, "looks like a card number")
	}
}

// validate checks a charge request against the bounds of the contract.
func validate(r intake.Charge) error {
	var k checker
	k.text("/order_id", r.OrderID, true, maxString)
	k.text("/payment_method", r.PaymentMethod, true, maxString)
	k.text("/description", r.Description, false, maxString)
	k.amount(r.Amount, domain.Currency(r.Currency).Step())
	k.nul = k.nul || hasNUL(r.Currency)
	if r.Currency == "" || !currency.IsValid(r.Currency) { // the library takes "" for valid
		k.refuse("/currency", "is not an ISO 4217 code in upper case")
	}
	k.items(r.Items)
	k.metadata(r.Metadata)
	return k.verdict()
}

// badStep is what is wrong with an amount that the provider cannot move.
const badStep = "is not a multiple of the least amount that can be moved: 10 minor units of BHD, JOD, KWD, OMR and TND, 100 of MGA"

// validateRefund checks a refund request. Whether so much is left, and can be moved in
// the charge's currency, is decided on the charge.
func validateRefund(r intake.Refund) error {
	var k checker
	if r.Amount != nil {
		k.amount(*r.Amount, 1)
	}
	k.text("/reason", r.Reason, false, maxString)
	return k.verdict()
}

func (k *checker) verdict() error {
	if k.nul {
		return errMalformed.because("a string holds the character U+0000")
	}
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
		k.refuse("/amount", badStep)
	}
}

func (k *checker) items(items []intake.Item) {
	if len(items) > maxItems {
		k.refuse("/items", "has more than 100 items")
		return
	}
	seen := make(map[string]bool, len(items))
	for i, item := range items {
		pointer := "/items/" + strconv.Itoa(i)
		k.text(pointer+"/sku", item.SKU, true, maxString)
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
		k.nul = k.nul || hasNUL(name)
		switch {
		case utf8.RuneCountInString(name) > maxMetadataValue:
			k.refuse("/metadata", "has a name longer than 500 characters")
		case holdsCard(name):
			k.refuse("/metadata", "has a name that looks like a card number")
		default:
			k.text("/metadata/"+escape(name), pairs[name], false, maxMetadataValue)
		}
	}
}

// escape writes a name as a token of a JSON Pointer.
func escape(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

// Digits of a card number.
const (
	shortestCard = 13
	longestCard  = 19
)

const uuidLength = 36

// holdsCard reports whether a text holds what may be a card number: 13 to 19 digits that
// pass Luhn's check, with spaces or dashes of any kind between them, and no letter at either
// end. Such a text is refused, so that no card is ever kept here. The digits of a UUID do not
// count: one in some thousands would pass.
func holdsCard(s string) bool {
	before := ' '
	for i := 0; i < len(s); {
		if rest := s[i:]; len(rest) >= uuidLength && uuid.Validate(rest[:uuidLength]) == nil {
			i += uuidLength
			before = 'f' // a UUID ends with a digit of its own
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if isDigit(r) && !isWord(before) && startsWithCard(s[i:]) {
			return true
		}
		before = r
		i += size
	}
	return false
}

func startsWithCard(s string) bool {
	var digits []byte
	for i, r := range s {
		switch {
		case len(digits) == longestCard:
			return false
		case separates(r):
			continue
		case !isDigit(r):
			return false
		}
		digits = append(digits, byte(r-'0'))
		next, _ := utf8.DecodeRuneInString(s[i+1:])
		if !isWord(next) && len(digits) >= shortestCard && luhn(digits) {
			return true
		}
	}
	return false
}

// separates reports whether people paste a character between the digits of a card: a space,
// a tab or a dash of any kind.
func separates(r rune) bool {
	return r == '\t' || unicode.Is(unicode.Zs, r) || unicode.Is(unicode.Pd, r)
}

// luhn is the check of ISO/IEC 7812: every second digit from the right is doubled, and the
// digits of it all add up to a multiple of ten.
func luhn(digits []byte) bool {
	sum := 0
	for i, d := range digits {
		n := int(d)
		if (len(digits)-i)%2 == 0 {
			n *= 2
		}
		sum += n/10 + n%10
	}
	return sum%10 == 0
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
