package main

import (
	"strings"
	"testing"
)

func TestExampleScenariosPass(t *testing.T) {
	out, errOut, err := try(t, "test", "../../examples/suites", "--config-dir", "../../examples/suites/config")
	if err != nil || !strings.HasSuffix(out, "\n3 scenarios passed.\n") {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
}
