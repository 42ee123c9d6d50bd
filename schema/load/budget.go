package load

import (
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

// Limits of one load. Whoever writes a file of the config directory may declare, and must not be
// able to exhaust the memory or the processor of every node. 10,000 images with typical fields
// have 270,000 values. With them, validate needs 6 s of processor time and less than 200 MiB (BenchmarkLargeConfiguration,
// on a busy machine).
const (
	// maxFileValues limits the values of one file by their document.Weight. A value costs a
	// parser and its result 300 bytes.
	maxFileValues = 500_000
	// maxUnitValues limits the values that .cue files of one package may result in. The child
	// process sends each with its position.
	maxUnitValues = 200_000
	// maxUnitText and maxText limit the bytes of text that one package of .cue files, and all
	// together, may result in. They are those of the files themselves.
	maxUnitText = configdir.MaxFile
	maxText     = 32 << 20
	// maxValues limits the values of all files together. The values of a file that was parsed
	// cost 100 bytes each.
	maxValues = 1_000_000
	// maxDocuments limits the documents of all files together, and the items of lists among
	// them. A document that is skipped costs about 500 bytes.
	maxDocuments = 50_000
	// maxDefinitions limits the images, nodes and settings together. The check of a definition takes about half a
	// millisecond, and an image about 8 KiB in a daemon: its definition, its part of the plan, and its part of a
	// status document that is sent.
	maxDefinitions = 12_000
	// maxPairs limits images times disks. The planner considers each pair after a change, which
	// takes 50 ns: 1 s.
	maxPairs = 20_000_000
	// maxCopies limits the desired copies. Each is in the status document of every node, which costs
	// about 1 KiB while it is sent.
	maxCopies = 100_000
	// maxSearched limits the bytes that are parsed again to find the lines of errors: 3 s.
	maxSearched = 32 << 20
	// maxErrors limits the problems of a Result. They are logged, and are part of each status
	// document.
	maxErrors = 1000
	// loadTime limits the processor time of a load, and evaluationTime what the evaluation of .cue
	// files takes of it. One package of .cue files may exceed it by 4 s, and what remains when the
	// time is over takes less than 4 s: together less than 30 s. The time on the clock would depend
	// on what else the machine does; only a child that makes no progress is ended by it. The next
	// Load continues with what is left over.
	loadTime       = 22 * time.Second
	evaluationTime = 12 * time.Second
)

// cost is what the content of a file costs: how much it has of each of costNames.
type cost [4]int

// The indexes of a cost.
const (
	valueCost = iota
	documentCost
	definitionCost
	textCost // bytes of text that .cue files result in
)

var costNames = [len(cost{})]string{"values", "documents", "images, nodes and settings", "bytes of text in .cue files"}

var (
	fileLimit      = cost{maxFileValues, maxDocuments, maxDefinitions, maxUnitText}
	directoryLimit = cost{maxValues, maxDocuments, maxDefinitions, maxText}
)

// exhausted returns the index of what a cost has more of than a limit, -1 if there is nothing.
func (c cost) exhausted(limit cost) int {
	for i := range c {
		if c[i] > limit[i] {
			return i
		}
	}
	return -1
}

// take takes the cost of a file from what is left. If that is not enough, it takes nothing, and returns the index of what
// is exhausted, otherwise -1.
func (c *cost) take(file cost) (exhausted int) {
	if exhausted = file.exhausted(*c); exhausted < 0 {
		for i := range c {
			c[i] -= file[i]
		}
	}
	return exhausted
}

// rejected returns the file as one that declares nothing, because it alone has too much of what.
func (p *parsedFile) rejected(what int) *parsedFile {
	return p.leftOut(fmt.Sprintf("has more than %s %s: it is not read", grouped(fileLimit[what]), costNames[what]))
}

// surplus returns the file as one that declares nothing, because all files together have too much
// of what.
func (p *parsedFile) surplus(what int) *parsedFile {
	return p.leftOut(fmt.Sprintf("is not read: the files of the directory have more than %s %s together", grouped(directoryLimit[what]), costNames[what]))
}

func (p *parsedFile) leftOut(message string) *parsedFile {
	out := &parsedFile{File: manifest.File{Path: p.Path}}
	out.AddProblem(document.Position{File: p.Path}, nil, message, "declare less in one directory: see the limits in the configuration reference")
	return out
}

// countDisks returns the number of declared disks.
func countDisks(c schema.Config) (n int) {
	for _, node := range c.Nodes {
		n += len(node.Disks)
	}
	return n
}

// desiredCopies returns an upper bound of the desired copies of all images, on the disks that match them and on those that they
// name.
func desiredCopies(c schema.Config) (n int) {
	disks := countDisks(c)
	for _, image := range c.Images {
		n += len(image.Disks)
		switch {
		case image.AllDisks && len(image.NodeSelector)+len(image.DiskSelector) > 0:
			n += matchingDisks(c, image, true)
		case image.AllDisks:
			n += disks
		default:
			n += min(image.Copies, disks)
		}
	}
	return n
}

// matchingDisks returns how many disks match the selectors of an image. Those that are being evicted count only if evicted is true.
func matchingDisks(c schema.Config, image schema.Image, evicted bool) (n int) {
	for _, node := range c.Nodes {
		if node.EvictionRequested && !evicted || !hasAll(node.Tags, image.NodeSelector) {
			continue
		}
		for _, d := range node.Disks {
			if (evicted || !d.EvictionRequested) && hasAll(d.Tags, image.DiskSelector) {
				n++
			}
		}
	}
	return n
}

// grouped returns a large number with commas.
func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}
