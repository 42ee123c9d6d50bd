// Package schema has what a config directory declares, as Go values. Package load makes the values from the files.
//
// The package reads no files, and a value does not change after it was loaded. So the planner may use the values.
//
// Reading order: config.go and image.go have what is declared, and loaded.go how far a manager may act on it. uuid.go has the
// formula of uuids, which is frozen.
package schema
