package main

import (
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// earlier changes the times in a record, see script_test.go.
func earlier(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: earlier DURATION RECORD...")
	}
	by, err := time.ParseDuration(args[0])
	ts.Check(err)
	for _, name := range args[1:] {
		var record map[string]any
		d := json.NewDecoder(strings.NewReader(ts.ReadFile(name)))
		d.UseNumber() // times of files are too long for a float
		ts.Check(d.Decode(&record))
		for _, key := range []string{"unwantedSince", "lastUsed"} {
			if text, noted := record[key].(string); noted {
				was, err := time.Parse(time.RFC3339Nano, text)
				ts.Check(err)
				record[key] = was.Add(-by)
			}
		}
		data, err := json.Marshal(record)
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(name), data, 0o644))
	}
}
