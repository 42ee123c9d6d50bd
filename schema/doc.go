// Package schema reads what a config directory declares.
//
// schema.cue, with manifests.cue for documents of Kubernetes, is the one truth of
// what may be declared; Config and the types below it are what the rest of the
// program takes. A Loader goes this way:
//
//	for each file, unless it is as it was:
//	    read it into values with places (YAML and JSON here, CUE in a child)
//	    split it into things: one setting, one node, one image each
//	for each thing, unless one that says the same was judged:
//	    a manifest: judge it by manifests.cue in the same way, and say it natively
//	    find what is misspelled, given twice, empty or without quotes
//	    let CUE judge the rest of it
//	    turn it into Go, and find what only Go can tell
//	assemble the things that hold: valid ones, and for broken ones what was last said
//	let claims declare what nothing defines (a StorageClass need not be the definition)
//	find what only the whole shows: clones, disks, addresses, definitions given twice, claims that disagree
//
// What follows from it:
//
//  1. A mistake is one line, in words of the user's file and at its place. CUE
//     tells where it is, @want in schema.cue what should stand there.
//  2. A mistake hurts one thing. Only what hides an unknown number of things,
//     such as a file that cannot be parsed, hurts a file.
//  3. A running manager goes on with what was last said of a broken thing. At
//     the start there is no such thing: then images are held back, and without
//     settings, nodes or a whole file only observing is allowed.
//  4. As long as there is any mistake there is no digest, and nothing may be
//     deleted.
//  5. A CUE context keeps all that it evaluated, so each batch has its own, and
//     no value of CUE outlives it. CUE cannot be stopped, so what a file of the
//     user computes is computed by a child with a limit on time and memory.
//  6. No message has a password or a token in it: values that may hold one are
//     marked private in schema.cue.
package schema
