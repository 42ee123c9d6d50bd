// Package backup reads and writes Longhorn's backup store for backing images, so
// that either program can restore what the other one has backed up.
package backup
