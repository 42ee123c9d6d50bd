package main

import (
	"flag"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/internal/testx/script"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

var (
	update     = flag.Bool("update", false, "write the actual output into the files that scenarios compare it with")
	repairSize = flag.Int64("repair.size", 16<<20, "size in bytes of the image that the scenario cluster_repair damages and repairs")
)

func TestMain(m *testing.M) {
	sandbox.ChildMain()
	if err := flag.Set("test.parallel", "6"); err != nil { // scenarios wait more than they compute; -parallel has precedence
		panic(err)
	}
	testscript.Main(m, map[string]func(){script.Program: main, bareTransfer: transferBare})
}

// TestScripts runs the scenarios in testdata/script, whose README documents them. One of them:
//
//	go test ./cmd/backing-image-manager -run TestScripts/NAME
func TestScripts(t *testing.T) {
	script.Run(t, script.Params{Root: "../..", Package: ".", Update: *update, RepairSize: *repairSize})
}
