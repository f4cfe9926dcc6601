// Package browser holds the test of the console's pages in Chromium, on a demo whose workers it
// kills. It runs with the flag -browser.
package browser
