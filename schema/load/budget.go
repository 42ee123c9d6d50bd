package load

import (
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

// Limits of one load. The author of a file in the config directory may declare anything, but must not be
// able to exhaust the memory or the processors of all nodes. 10,000 images with typical fields
// have 270,000 values. For them, validate needs 6 s of processor time and less than 200 MiB (BenchmarkLargeConfiguration,
// on a busy machine).
const (
	// maxFileValues limits the document.Weight of one file. A parser and its result together need
	// 300 bytes for a value.
	maxFileValues = 500_000
	// maxUnitValues limits the values in the result of one package of .cue files. The child
	// process sends each value with its position.
	maxUnitValues = 200_000
	// maxUnitText limits the bytes of text in the result of one package of .cue files, and maxText
	// in all results together. The text of files has the same limits.
	maxUnitText = configdir.MaxFile
	maxText     = 32 << 20
	// maxValues limits the values of all files together. The values of a file that was parsed
	// cost 100 bytes each.
	maxValues = 1_000_000
	// maxDocuments limits the documents of all files together. An item of a list of manifests is
	// a document, too. A skipped document costs about 500 bytes.
	maxDocuments = 50_000
	// maxDefinitions limits the images, nodes and settings together. The check of a definition takes about half a
	// millisecond. An image takes about 8 KiB of the memory of a daemon: its definition, and its parts of the plan
	// and of a status document that is sent.
	maxDefinitions = 12_000
	// maxPairs limits images times disks. After a change, the planner considers each pair for
	// 50 ns: 1 s for all.
	maxPairs = 20_000_000
	// maxCopies limits the desired copies. Each takes about 1 KiB in the status document of every
	// node while the document is sent.
	maxCopies = 100_000
	// maxSearched limits the bytes that are parsed again to find the lines of errors. This takes 3 s.
	maxSearched = 32 << 20
	// maxErrors limits the problems of a Result. They are logged, and are part of each status
	// document.
	maxErrors = 1000
	// loadTime limits the processor time of a load, and evaluationTime the part of it for .cue files.
	// The last package of .cue files may take 4 s longer. After loadTime, the rest of the load takes
	// less than 4 s. Together this is less than 30 s. Time on the clock would depend on what else the
	// machine does, so it only ends children that make no progress. The next Load continues with what
	// is left over.
	loadTime       = 22 * time.Second
	evaluationTime = 12 * time.Second
)

// cost is the cost of the content of a file: the number of its values, documents, and so on (costNames).
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

// exhausted returns the index of the first number in a cost that exceeds its limit, and -1 if all are within their limits.
func (c cost) exhausted(limit cost) int {
	for i := range c {
		if c[i] > limit[i] {
			return i
		}
	}
	return -1
}

// take subtracts the cost of a file from the cost that is left, and returns -1. If too little is left, take subtracts
// nothing, and returns the index of what is exhausted.
func (c *cost) take(file cost) (exhausted int) {
	if exhausted = file.exhausted(*c); exhausted < 0 {
		for i := range c {
			c[i] -= file[i]
		}
	}
	return exhausted
}

// rejected returns a replacement of file p that declares nothing, because p alone has too much. The argument what is the
// index in the cost.
func (p *parsedFile) rejected(what int) *parsedFile {
	return p.leftOut(fmt.Sprintf("has more than %s %s: it is not read", grouped(fileLimit[what]), costNames[what]))
}

// surplus returns a replacement of file p that declares nothing, because all files together have too
// much. The argument what is the index in the cost.
func (p *parsedFile) surplus(what int) *parsedFile {
	return p.leftOut(fmt.Sprintf("is not read: the files of the directory have more than %s %s together", grouped(directoryLimit[what]), costNames[what]))
}

func (p *parsedFile) leftOut(message string) *parsedFile {
	out := &parsedFile{File: manifest.File{Path: p.Path}}
	out.AddProblem(document.Position{File: p.Path}, nil, message, "declare less in one directory: see the limits of the configuration in the operations guide")
	return out
}

// countDisks returns the number of declared disks.
func countDisks(c schema.Config) (n int) {
	for _, node := range c.Nodes {
		n += len(node.Disks)
	}
	return n
}

// desiredCopies returns an upper bound of the number of desired copies of all images. It counts the disks that match an
// image, and the disks that the image names.
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

// matchingDisks returns how many disks match the selectors of an image. Disks with evictionRequested count only if the
// argument evicted is true.
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
