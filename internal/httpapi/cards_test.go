package httpapi_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
)

func TestHoldsCard_knowsTheNetworksInUse(t *testing.T) {
	t.Parallel()
	lengths := map[string][]int{ // of each network's first and last prefixes, and of their neighbours
		"4": {16, 19}, "50": nil, "51": {16}, "55": {16}, "56": nil, "2220": nil, "2221": {16}, "2720": {16}, "2721": nil,
		"33": nil, "34": {15}, "35": nil, "37": {15}, "39": nil, "6010": nil, "6011": {16, 17, 18, 19}, "6012": nil,
		"643": nil, "644": {16, 17, 18, 19}, "649": {16, 17, 18, 19}, "65": {16, 17, 18, 19}, "66": nil,
		"299": nil, "300": {14}, "305": {14}, "306": nil, "36": {14}, "38": {14},
		"3527": nil, "3528": {16, 17, 18, 19}, "3589": {16, 17, 18, 19}, "3590": nil, "62": {16, 17, 18, 19}, "63": nil,
		"1": nil, "9": nil, "2026": nil, "978": nil, // timestamps, days and EAN-13
	}
	for prefix, want := range lengths {
		for digits := 12; digits <= 20; digits++ {
			var cards []string // the last digit is Luhn's check of the others
			for last := range 10 {
				number := prefix + strings.Repeat("0", digits-len(prefix)-1) + strconv.Itoa(last)
				if httpapi.HoldsCard(number) {
					cards = append(cards, number)
				}
			}
			if len(cards) > 1 || (len(cards) == 1) != slices.Contains(want, digits) {
				t.Errorf("%s, %d digits: these are taken for card numbers: %q", prefix, digits, cards)
			}
		}
	}
}

func TestHoldsCard_bySeparatorsAndNeighbours(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"4242 4242 4242 4242": true, "4242-4242-4242-4242": true, "4242 4242-42424242": true, "4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2": true,
		"4242 4242 4242 4242 12/30": true, "no. 1-4242-4242-4242-4242.": true, "(3782 822463 10005)": true, "_4242424242424242_": true,
		"4242424242424242,5555555555554444": true, "42424242-4242-4242-8242-abcdefabcdef": true, "\u00a04242\u00a04242\t4242\u20074242\u00a0": true,
		"pan4242424242424242": false, "4242424242424242x": false, "é4242424242424242": false, "14242424242424242": false, "4242424242424242 1": true,
		"4242  4242 4242 4242": false, "4242.4242.4242.4242": false, "4242_4242_4242_4242": false, "4242/4242/4242/4242": false,
		"4242 - 4242 4242 4242": false, "４２４２４２４２４２４２４２４２": false, "4242a4242b4242c4242": false, "": false,
	} {
		if got := httpapi.HoldsCard(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
