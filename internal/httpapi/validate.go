package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bojanz/currency"

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
